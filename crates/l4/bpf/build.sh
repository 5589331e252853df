#!/bin/sh
# Compiles the programs: `build.sh [FOLDER]`, by default beside their sources. What is committed is what is shipped; a test
# holds it against a fresh build where the same clang is installed. Needs Debian's clang, llvm and libbpf-dev.
set -eu
cd "$(dirname "$0")"
to=${1:-.}
for program in l4 decap measure; do
    clang -target bpf -mcpu=v3 -O2 -g -Wall -Wextra -Werror -Wno-unused-parameter -fdebug-prefix-map="$PWD"=. \
        -fdebug-compilation-dir=. -I"/usr/include/$(uname -m)-linux-gnu" -c "$program.bpf.c" -o "$to/$program.o"
    # Maps are described by .BTF; lines and symbols for debuggers are not shipped.
    llvm-strip -g "$to/$program.o"
    llvm-objcopy --remove-section=.BTF.ext --remove-section=.rel.BTF.ext --remove-section=.rel.BTF \
        --remove-section=.llvm_addrsig "$to/$program.o"
done
