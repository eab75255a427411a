//! Where request bodies come from.

use scenario::plan::PlanLine;

use crate::engine::plan_load::BodySource;

/// Bodies made from plan lines, as the scenario crate writes them.
#[must_use]
pub fn from_plan(salt: String, model: String) -> BodySource {
    Box::new(move |line: &PlanLine| scenario::prompt::body(line, &salt, &model))
}
