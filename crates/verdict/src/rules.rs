//! Named rules: quirks that the contract declares normal, each with its source (design section 7). A rule that is used is
//! in the result of the assertion that used it; `--no-rule NAME` turns it off, and the quirk is a fail again.

use evidence::assertion::AssertionId;

use crate::assertions::Case;
use crate::sheet::Sheet;

/// A named rule.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Rule {
    /// Name on the command line.
    pub name: &'static str,
    /// Assertions that it excuses something in.
    pub excuses: &'static [AssertionId],
    /// What is normal.
    pub meaning: &'static str,
    /// Where that is said.
    pub source: &'static str,
}

/// An inference that the gateway signed to probe a host and never sent.
pub const GHOST: Rule = Rule {
    name: "ghost",
    excuses: &[AssertionId::A6],
    meaning: "a start with the constant body of a probe stays pending: no host was asked to run it",
    source: "contract gateway 6.5",
};

/// Calls at nodes that hosts remember while the allocator is out.
pub const CACHED_NODE: Rule = Rule {
    name: "cached-node",
    excuses: &[AssertionId::A11],
    meaning: "while the allocator is faulted, hosts call nodes that they know already, without a lock of their own",
    source: "contract mocks 4",
};

/// A request that the gateway could not begin.
pub const PREPARE_FAILURE: Rule = Rule {
    name: "prepare-failure",
    excuses: &[AssertionId::A1, AssertionId::A11],
    meaning: "a row without attempts stays running when the client was answered an error: the request was refused \
              before its race, and the gateway counts no race for it",
    source: "contract gateway 10.2",
};

/// A row that stands under another id than the answer named.
pub const SPLIT_ID: Rule = Rule {
    name: "july-id-split",
    excuses: &[AssertionId::A10],
    meaning: "accounting knows the request by an id of its own, which the gateway's log or its perf database joins to \
              the nonce",
    source: "contract gateway 3.1 and 3.3",
};

/// An answer of a failed race that bears no request id.
pub const NAMELESS_FAILURE: Rule = Rule {
    name: "nameless-failure",
    excuses: &[AssertionId::A10],
    meaning: "the answer of a failed race has no X-Request-Id, and the gateway's log or its perf database joins it; the \
              reference in its intended personality names every answer and is not excused",
    source: "contract gateway 3.1",
};

/// An answer from the response cache that accounting does not know.
pub const CACHE_HIT: Rule = Rule {
    name: "july-cache-hit",
    excuses: &[AssertionId::A10],
    meaning: "a whole answer that the gateway's own records call a cache hit has no row where ids are split: its alias \
              names an id that accounting never had",
    source: "contract gateway 3.1, 4.4 and 5.4",
};

/// A participant that the gateway keeps away from after the run.
pub const QUARANTINE: Rule = Rule {
    name: "quarantine-left",
    excuses: &[AssertionId::A9],
    meaning: "a participant whose failures the gateway counted in this run stays in quarantine or probation after it, for \
              no longer than the settings say",
    source: "contract gateway 4.11 and 10.3",
};

/// A runtime that is gone after finalize or a planned deactivation.
pub const UNLOADED: Rule = Rule {
    name: "unloaded-after-finalize",
    excuses: &[AssertionId::A4],
    meaning: "an escrow that was finalized, settled or deactivated by an action may be unloaded and show a lower nonce \
              or none",
    source: "contract gateway 2.4 and 6.6",
};

/// Every rule.
pub const ALL: [Rule; 8] =
    [GHOST, CACHED_NODE, PREPARE_FAILURE, SPLIT_ID, NAMELESS_FAILURE, CACHE_HIT, QUARANTINE, UNLOADED];

/// The rule of a name.
///
/// # Errors
/// A sentence that names the nearest rule.
pub fn find(name: &str) -> Result<Rule, String> {
    ALL.into_iter().find(|rule| rule.name == name).ok_or_else(|| {
        let names = || ALL.iter().map(|rule| rule.name);
        let hint = scenario::error::nearest(name, names()).map(|near| format!("; did you mean {near:?}?"));
        let known = names().collect::<Vec<_>>().join(", ");
        format!("there is no named rule {name:?}{} (rules: {known})", hint.unwrap_or_default())
    })
}

impl Case<'_> {
    /// Whether a rule is in force.
    #[must_use]
    pub fn rule_on(&self, rule: Rule) -> bool {
        !self.evidence.run.rules_off.iter().any(|off| off == rule.name)
    }
}

impl Sheet {
    /// Notes that a rule excused something.
    pub fn rule(&mut self, rule: Rule, count: u64) {
        self.rule_used(rule.name, rule.source, count);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_misspelt_rule_gets_its_neighbour() {
        assert_eq!(find("ghost"), Ok(GHOST));
        let error = find("gohst").unwrap_err();
        assert!(error.contains("did you mean \"ghost\"") && error.contains("july-id-split"), "{error}");
    }
}
