//! What a rule says: what is wrong, by which numbers, why it matters, what cures it, how sure that is.

use serde::Serialize;

/// How much a finding weighs. The order is that of the report.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Weight {
    /// Requests fail now, or connections are refused.
    Critical,
    /// Something is close to its limit, or was beyond it.
    Warning,
    /// Worth knowing; nothing suffers from it now.
    Note,
}

impl Weight {
    /// As it is printed.
    pub fn name(self) -> &'static str {
        match self {
            Weight::Critical => "critical",
            Weight::Warning => "warning",
            Weight::Note => "note",
        }
    }
}

/// How sure a finding is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Sure {
    /// The numbers leave no other explanation.
    Certain,
    /// They have another one, which is rarer.
    Likely,
    /// A guess that is worth a look.
    Possible,
}

impl Sure {
    /// As it is printed.
    pub fn name(self) -> &'static str {
        match self {
            Sure::Certain => "certain",
            Sure::Likely => "likely",
            Sure::Possible => "possible",
        }
    }
}

/// A number or a line, and where it was read.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Evidence {
    /// What was read.
    pub what: String,
    /// Where: a file, a counter, `sock_diag`, a line of a configuration.
    pub from: String,
}

/// See the file.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Finding {
    /// A name that stays the same, for scripts: `accept-queue-full`.
    pub id: &'static str,
    /// How much it weighs.
    pub weight: Weight,
    /// What is wrong, one sentence.
    pub what: String,
    /// By what that is known.
    pub evidence: Vec<Evidence>,
    /// Why it matters.
    pub why: String,
    /// What cures it: commands and lines of configuration.
    pub cure: Vec<String>,
    /// How sure it is.
    pub sure: Sure,
}

impl Finding {
    /// One of which so far only its name, weight and sentence are known. It is certain until it is said otherwise.
    pub fn new(id: &'static str, weight: Weight, what: impl Into<String>) -> Finding {
        let (evidence, cure) = (Vec::new(), Vec::new());
        Finding { id, weight, what: what.into(), evidence, why: String::new(), cure, sure: Sure::Certain }
    }

    /// Adds evidence.
    #[must_use]
    pub fn seen(mut self, what: impl Into<String>, from: impl Into<String>) -> Finding {
        self.evidence.push(Evidence { what: what.into(), from: from.into() });
        self
    }

    /// Says why it matters.
    #[must_use]
    pub fn because(mut self, why: impl Into<String>) -> Finding {
        self.why = why.into();
        self
    }

    /// Adds a cure.
    #[must_use]
    pub fn cure(mut self, cure: impl Into<String>) -> Finding {
        self.cure.push(cure.into());
        self
    }

    /// Says how sure it is.
    #[must_use]
    pub fn sure(mut self, sure: Sure) -> Finding {
        self.sure = sure;
        self
    }
}

/// The heaviest first, the surest of those first; what has the same name and sentence stands once.
pub fn sort(mut findings: Vec<Finding>) -> Vec<Finding> {
    findings.sort_by_key(|f| (f.weight, f.sure));
    let mut seen = std::collections::HashSet::new();
    findings.retain(|f| seen.insert((f.id, f.what.clone())));
    findings
}
