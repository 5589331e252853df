//! nginx.conf text: lexer, tree, includes, diagnostics, directive table.
