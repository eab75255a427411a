//! Defects that a test plants into a build of feature `planted-defects`, to show that they are found. Without the feature
//! there are none, and the compiler drops the question.

/// Whether the environment of this build names a defect.
#[cfg(feature = "planted-defects")]
pub(crate) fn is_planted(name: &str) -> bool {
    std::env::var_os("PROOFLOAD_LOADGEN_DEFECT").is_some_and(|defect| defect == name)
}

/// Whether the environment of this build names a defect.
#[cfg(not(feature = "planted-defects"))]
pub(crate) const fn is_planted(_name: &str) -> bool {
    false
}
