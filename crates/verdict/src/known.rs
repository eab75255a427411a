//! Known findings: faults that are known and not yet repaired. They stay a fail; only `--accept-known`, with nothing new
//! beside them, changes how the program ends.

use evidence::assertion::{AssertionId, AssertionResult, Assertions, Status, Witness};
use evidence::exit::{Findings, Outcome};
use evidence::known::{
    KNOWN_VERSION, KnownEntry, KnownFinding, KnownFindings, KnownReport, KnownState, WitnessPattern,
};
use scenario::error::nearest;

use crate::judge::Judgement;

/// Reads a known-findings file strictly. `name` is what errors call it.
///
/// # Errors
/// What is wrong, with its line where one is known, and the nearest known key.
pub fn parse(name: &str, text: &str) -> Result<KnownFindings, String> {
    let known: KnownFindings =
        serde_yaml::from_str(text).map_err(|error| format!("{name}: {}", with_hint(&error.to_string())))?;
    if known.version != KNOWN_VERSION {
        return Err(format!("{name}: version is {}, this build reads {KNOWN_VERSION}", known.version));
    }
    for (finding, number) in known.findings.iter().zip(1..) {
        check(finding).map_err(|why| format!("{name}: entry {number} ({}): {why}", finding.assertion))?;
    }
    Ok(known)
}

/// Adds the nearest known word to an error about an unknown one.
fn with_hint(error: &str) -> String {
    let first = error.lines().next().unwrap_or_default();
    let unknown = ["unknown field", "unknown variant"].iter().any(|kind| first.contains(kind));
    let word = first.split('`').nth(1).filter(|_| unknown);
    // "expected one of a, b, c": the words may stand in backticks or not.
    let known =
        first.split_once("expected one of ").or_else(|| first.split_once("expected ")).map(|(_, list)| list);
    let known = known.unwrap_or_default().split(", ").map(|known| known.trim_matches('`'));
    match word.and_then(|word| nearest(word, known)) {
        Some(word) => format!("{error}; did you mean {word:?}?"),
        None => error.to_owned(),
    }
}

fn check(finding: &KnownFinding) -> Result<(), String> {
    for (key, text) in [("reason", &finding.reason), ("because", &finding.because), ("owner", &finding.owner)]
    {
        if text.trim().is_empty() {
            return Err(format!("{key} is empty"));
        }
    }
    if !finding.link.starts_with("https://") && !finding.link.starts_with("http://") {
        return Err(format!("link {:?} is no address: it must begin with https://", finding.link));
    }
    if !is_day(&finding.expires) {
        return Err(format!("expires {:?} is no day: write YYYY-MM-DD", finding.expires));
    }
    if finding.assertion == AssertionId::V {
        return Err("an invalid run says nothing about Devshard: V can't be a known finding".to_owned());
    }
    Ok(())
}

/// Whether a text is a day of the calendar as `YYYY-MM-DD`. Such texts compare like the days they name.
fn is_day(text: &str) -> bool {
    let parts: Vec<&str> = text.split('-').collect();
    let [year, month, day] = parts.as_slice() else { return false };
    let number = |part: &str, len: usize| {
        Some(part)
            .filter(|part| part.len() == len && part.bytes().all(|byte| byte.is_ascii_digit()))?
            .parse()
            .ok()
    };
    let (Some(year), Some(month), Some(day)) = (number(year, 4), number(month, 2), number(day, 2)) else {
        return false;
    };
    let leap = year % 4 == 0 && (year % 100 != 0 || year % 400 == 0);
    let days = match month {
        1 | 3 | 5 | 7 | 8 | 10 | 12 => 31,
        4 | 6 | 9 | 11 => 30,
        2 if leap => 29,
        2 => 28,
        _ => 0_u32,
    };
    (1..=days).contains(&day)
}

/// Entries of the file, and what they took so far.
#[derive(Clone, Debug)]
pub(crate) struct Tally {
    entries: Vec<(KnownFinding, Validity, u64)>,
    looked: u64,
    new: u64,
}

/// Whether the last day of an entry is over.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Validity {
    Valid,
    Expired,
}

impl Tally {
    fn new(known: &KnownFindings, today: &str) -> Self {
        let validity = |finding: &KnownFinding| match finding.expires.as_str() >= today {
            true => Validity::Valid,
            false => Validity::Expired,
        };
        let entries = known.findings.iter().map(|finding| (finding.clone(), validity(finding), 0));
        Self { entries: entries.collect(), looked: 0, new: 0 }
    }

    /// Holds one witness against all entries.
    pub(crate) fn take(&mut self, id: AssertionId, witness: &Witness) {
        let mut taken = false;
        for (finding, validity, count) in &mut self.entries {
            if takes(finding, id, witness) {
                *count += 1;
                taken |= *validity == Validity::Valid;
            }
        }
        self.looked += 1;
        self.new += u64::from(!taken);
    }

    /// Whether an entry for this reason names a load request.
    pub(crate) fn asks_request(&self, id: AssertionId, reason: &str) -> bool {
        let asks = |finding: &KnownFinding| {
            finding.assertion == id && finding.reason == reason && finding.witness.request_id.is_some()
        };
        self.entries.iter().any(|(finding, ..)| asks(finding))
    }
}

/// Holds what failed against the file. `today` is `YYYY-MM-DD`; `accept` is `--accept-known`. Every witness is held
/// against it: where more were found than are kept, the assertion looks for them once more, one after the other.
#[must_use]
pub fn compare(judged: &Judgement, known: &KnownFindings, today: &str, accept: bool) -> KnownReport {
    let assertions = &judged.assertions;
    let mut tally = Tally::new(known, today);
    for result in assertions.results.iter().filter(|result| result.id != AssertionId::V) {
        let before = tally.looked;
        if result.witnesses_total == result.witnesses.len() as u64 {
            result.witnesses.iter().for_each(|witness| tally.take(result.id, witness));
        } else {
            tally = judged.hold_all(result.id, tally);
        }
        // What could not be looked for again is held by no entry.
        tally.new += result.witnesses_total.saturating_sub(tally.looked - before);
    }
    let entry = |(finding, validity, count): (KnownFinding, Validity, u64)| {
        let result = assertions.results.iter().find(|result| result.id == finding.assertion);
        let judged = result.is_some_and(|result| result.status != Status::Unknown);
        let state = match (count, validity, judged) {
            (1.., Validity::Valid, _) => KnownState::Known,
            (1.., Validity::Expired, _) => KnownState::Expired,
            (0, _, true) => KnownState::Gone,
            (0, _, false) => KnownState::NotJudged,
        };
        KnownEntry { finding, state, count }
    };
    let new = tally.new;
    let accepted = accept && new == 0 && assertions.verdict == Outcome::Fail;
    KnownReport { entries: tally.entries.into_iter().map(entry).collect(), new, accepted }
}

/// How a run ends whose known findings are accepted: as if they had not been there. An assertion that failed may have
/// missed an input or its least count beside; without its witnesses it would be unknown, and so is the run.
#[must_use]
pub fn outcome_without(assertions: &Assertions) -> Outcome {
    let half = |result: &AssertionResult| {
        let short = !result.missing.is_empty() || result.evaluated < result.minimum;
        result.status == Status::Fail && result.id != AssertionId::V && short
    };
    let findings = assertions.findings;
    let unknown = findings.unknown || assertions.results.iter().any(half);
    Findings { correctness_failed: false, threshold_failed: false, unknown, ..findings }.outcome()
}

fn takes(finding: &KnownFinding, id: AssertionId, witness: &Witness) -> bool {
    let WitnessPattern { message, request_id, escrow, service, subject } = &finding.witness;
    let holds = |pattern: &Option<String>, text: Option<&str>| {
        pattern.as_deref().is_none_or(|pattern| text.is_some_and(|text| glob(pattern, text)))
    };
    finding.assertion == id
        && finding.reason == witness.reason
        && holds(message, Some(&witness.message))
        && holds(request_id, witness.request_id.as_deref())
        && holds(escrow, witness.escrow.as_deref())
        && holds(service, witness.service.as_deref())
        && holds(subject, witness.subject.as_deref())
}

/// Whether a text fits a pattern in which `*` stands for any text.
fn glob(pattern: &str, text: &str) -> bool {
    let Some((head, rest)) = pattern.split_once('*') else { return pattern == text };
    let Some(mut text) = text.strip_prefix(head) else { return false };
    let parts: Vec<&str> = rest.split('*').collect();
    let (last, middle) = parts.split_last().expect("a split has at least one part");
    for part in middle {
        match text.find(part) {
            Some(at) => text = &text[at + part.len()..],
            None => return false,
        }
    }
    text.ends_with(last)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn stars_stand_for_any_text() {
        for (pattern, text, fits) in [
            ("", "", true),
            ("*", "", true),
            ("a*c", "abc", true),
            ("a*c", "abcd", false),
            ("*b*", "abc", true),
            ("a*b*c", "a-c-b-c", true),
            ("ab*ba", "aba", false),
            ("host-*", "host-12", true),
            ("host", "host-1", false),
        ] {
            assert_eq!(glob(pattern, text), fits, "{pattern:?} {text:?}");
        }
    }

    #[test]
    fn days_are_days_of_the_calendar() {
        for (text, day) in [
            ("2026-02-28", true),
            ("2026-02-29", false),
            ("2028-02-29", true),
            ("2100-02-29", false),
            ("2026-13-01", false),
            ("2026-00-10", false),
            ("2026-4-01", false),
            ("26-04-01", false),
            ("2026-04-31", false),
            ("tomorrow", false),
        ] {
            assert_eq!(is_day(text), day, "{text}");
        }
    }
}
