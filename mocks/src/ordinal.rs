//! Selection by ordinal, for calls that carry no request id (allocator and chain).

use scenario::fault::Select;

/// Whether the call with this ordinal (from 1) is selected. Forms that need a request id select nothing here;
/// [`check`] refuses them before they get this far.
#[must_use]
pub fn selects(select: &Select, ordinal: u64) -> bool {
    match select {
        Select::All(all) => *all,
        Select::Calls(calls) => calls.contains(&ordinal),
        Select::Fraction(_) | Select::Ids(_) => false,
    }
}

/// Refuses forms of selection that can't work without a request id.
///
/// # Errors
/// A message that names the rule and says what to write instead.
pub fn check(rule: &str, select: &Select) -> Result<(), String> {
    match select {
        Select::All(_) => Ok(()),
        Select::Calls(calls) if calls.contains(&0) => {
            Err(format!("rule {rule:?}: ordinals of calls start at 1"))
        }
        Select::Calls(_) => Ok(()),
        Select::Fraction(_) | Select::Ids(_) => Err(format!(
            "rule {rule:?}: these calls carry no request id, select `all: true` or `calls: [1, 2]`"
        )),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use scenario::units::Ppb;

    #[test]
    fn ordinals_and_all_select() {
        assert!(selects(&Select::All(true), 7));
        assert!(!selects(&Select::All(false), 7));
        assert!(selects(&Select::Calls(vec![1, 7]), 7));
        assert!(!selects(&Select::Calls(vec![1, 7]), 6));
        assert!(!selects(&Select::Fraction(Ppb::ONE), 1));
    }

    #[test]
    fn what_needs_a_request_id_is_refused() {
        assert!(check("r", &Select::Fraction(Ppb::ONE)).is_err());
        assert!(check("r", &Select::Ids(Vec::new())).is_err());
        assert!(check("r", &Select::Calls(vec![0])).is_err());
        assert!(check("r", &Select::Calls(vec![1])).is_ok());
    }
}
