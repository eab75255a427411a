//! The sheet on which one assertion writes what it looked at, and how it becomes a result.

use std::collections::BTreeMap;

use evidence::assertion::{AssertionId, AssertionResult, Information, RuleUse, Status, Witness};

use crate::known::Tally;

/// Witnesses kept per reason; all are counted.
pub const WITNESSES_PER_REASON_MAX: usize = 50;

/// One assertion at work.
#[derive(Debug)]
pub struct Sheet {
    id: AssertionId,
    unit: &'static str,
    minimum: u64,
    evaluated: u64,
    missing: Vec<String>,
    witnesses: Vec<Witness>,
    per_reason: BTreeMap<String, u64>,
    parts: BTreeMap<String, Status>,
    rules: BTreeMap<(String, String), u64>,
    information: BTreeMap<String, (String, u64)>,
    not_applicable: Option<String>,
    tally: Option<Tally>,
}

impl Sheet {
    /// An empty sheet. `minimum` things must be looked at for a pass.
    #[must_use]
    pub fn new(id: AssertionId, unit: &'static str, minimum: u64) -> Self {
        Self {
            id,
            unit,
            minimum,
            evaluated: 0,
            missing: Vec::new(),
            witnesses: Vec::new(),
            per_reason: BTreeMap::new(),
            parts: BTreeMap::new(),
            rules: BTreeMap::new(),
            information: BTreeMap::new(),
            not_applicable: None,
            tally: None,
        }
    }

    /// A sheet that holds every witness against known findings, those included that it does not keep.
    pub(crate) fn holding(id: AssertionId, unit: &'static str, tally: Tally) -> Self {
        Self { tally: Some(tally), ..Self::new(id, unit, 1) }
    }

    /// What the known findings took.
    pub(crate) fn into_tally(self) -> Option<Tally> {
        self.tally
    }

    /// Counts things that were looked at.
    pub fn looked(&mut self, count: u64) {
        self.evaluated += count;
    }

    /// Raises or lowers the least number of things.
    pub fn set_minimum(&mut self, minimum: u64) {
        self.minimum = minimum;
    }

    /// Adds a witness.
    pub fn witness(&mut self, witness: Witness) {
        if let Some(tally) = &mut self.tally {
            tally.take(self.id, &witness);
        }
        let seen = self.per_reason.entry(witness.reason.clone()).or_default();
        *seen += 1;
        if *seen <= WITNESSES_PER_REASON_MAX as u64 {
            self.witnesses.push(witness);
        }
    }

    /// Whether somebody would read the load request of one more witness of a reason: where it is costly to find out, it
    /// is asked for those alone.
    #[must_use]
    pub fn wants_request(&self, reason: &str) -> bool {
        let kept = self.per_reason.get(reason).is_none_or(|seen| *seen < WITNESSES_PER_REASON_MAX as u64);
        kept || self.tally.as_ref().is_some_and(|tally| tally.asks_request(self.id, reason))
    }

    /// Names an input that is missing: without a witness the result is unknown.
    pub fn missing(&mut self, what: impl Into<String>) {
        let what = what.into();
        if !self.missing.contains(&what) {
            self.missing.push(what);
        }
    }

    /// Takes the witnesses of reasons that something outside of what is judged explains, in these words: they are told as
    /// what can't be known.
    pub(crate) fn excuse(&mut self, explained: impl Fn(&str) -> Option<String>) {
        let reasons: Vec<(String, String)> =
            self.per_reason.keys().filter_map(|reason| Some((reason.clone(), explained(reason)?))).collect();
        for (reason, why) in reasons {
            let count = self.per_reason.remove(&reason).unwrap_or_default();
            let first = self.witnesses.iter().find(|witness| witness.reason == reason);
            let first = first.map(|witness| witness.message.clone()).unwrap_or_default();
            self.witnesses.retain(|witness| witness.reason != reason);
            self.missing(format!("{count} {reason} that may come of this: {why}; the first: {first}"));
        }
    }

    /// Sets the status of a part.
    pub fn part(&mut self, name: &str, status: Status) {
        self.parts.insert(name.to_owned(), status);
    }

    /// Notes how often a named rule was used; [`crate::rules`] gives name and source.
    pub(crate) fn rule_used(&mut self, rule: &str, source: &str, count: u64) {
        if count > 0 {
            *self.rules.entry((rule.to_owned(), source.to_owned())).or_default() += count;
        }
    }

    /// Notes something that is no failure.
    pub fn information(&mut self, name: &str, message: &str, count: u64) {
        if count > 0 {
            let entry = self.information.entry(name.to_owned()).or_insert_with(|| (message.to_owned(), 0));
            entry.1 += count;
        }
    }

    /// The committed table says that the evidence can't exist here.
    pub fn not_applicable(&mut self, why: &str) {
        self.not_applicable = Some(why.to_owned());
    }

    /// The result: a witness is a fail; without one a missing input or too little evidence is unknown.
    #[must_use]
    pub fn finish(mut self) -> AssertionResult {
        let status = if self.per_reason.is_empty() {
            if let Some(why) = &self.not_applicable {
                self.information.insert("not-applicable".to_owned(), (why.clone(), 1));
                Status::NotApplicable
            } else if !self.missing.is_empty() {
                Status::Unknown
            } else if self.evaluated < self.minimum {
                let text =
                    format!("{} {} looked at, at least {} needed", self.evaluated, self.unit, self.minimum);
                self.missing.push(text);
                Status::Unknown
            } else {
                Status::Pass
            }
        } else {
            Status::Fail
        };
        let rules = self.rules.into_iter().map(|((rule, source), count)| RuleUse { rule, source, count });
        let information =
            self.information.into_iter().map(|(name, (message, count))| Information { name, message, count });
        AssertionResult {
            id: self.id,
            name: self.id.name().to_owned(),
            status,
            evaluated: self.evaluated,
            unit: self.unit.to_owned(),
            minimum: self.minimum,
            parts: self.parts,
            missing: self.missing,
            witnesses: self.witnesses,
            witnesses_total: self.per_reason.values().sum(),
            rules: rules.collect(),
            information: information.collect(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_pass_needs_a_look_and_a_fail_a_witness() {
        let sheet = Sheet::new(AssertionId::A1, "requests", 1);
        assert_eq!(sheet.finish().status, Status::Unknown, "nothing looked at");
        let mut sheet = Sheet::new(AssertionId::A1, "requests", 1);
        sheet.looked(3);
        assert_eq!(sheet.finish().status, Status::Pass);
        let mut sheet = Sheet::new(AssertionId::A1, "requests", 1);
        sheet.looked(3);
        sheet.missing("accounting.jsonl");
        assert_eq!(sheet.finish().status, Status::Unknown);
        let mut sheet = Sheet::new(AssertionId::A1, "requests", 1);
        sheet.missing("accounting.jsonl");
        (0..70).for_each(|_| sheet.witness(Witness::new("x", "y")));
        let result = sheet.finish();
        assert_eq!((result.status, result.witnesses_total), (Status::Fail, 70));
        assert_eq!(result.witnesses.len(), WITNESSES_PER_REASON_MAX);
    }
}
