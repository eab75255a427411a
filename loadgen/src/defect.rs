//! Defects that a test plants into a build of feature `planted-defects`, to show that they are found. Without the feature
//! there are none, and the compiler drops the question.

use evidence::record::ClientClass;

/// Whether the environment of this build names a defect.
#[cfg(feature = "planted-defects")]
pub(crate) fn is_planted(name: &str) -> bool {
    std::env::var_os("PROOFLOAD_LOADGEN_DEFECT").is_some_and(|defect| defect == name)
}

/// The planted defect `wrong-class` (selftest, layer M): every thirtieth good answer is taken for one that the client left.
#[cfg(feature = "planted-defects")]
pub(crate) fn class_of(class: ClientClass, id: &str) -> ClientClass {
    use std::sync::atomic::{AtomicU64, Ordering};
    static GOOD: AtomicU64 = AtomicU64::new(1);
    let turn = || GOOD.fetch_add(1, Ordering::Relaxed).is_multiple_of(30);
    if class == ClientClass::Ok && is_planted("wrong-class") && turn() {
        // The self-test reads these lines.
        eprintln!("planted defect took effect request={id}");
        return ClientClass::Cancelled;
    }
    class
}

/// The class as it is: nothing is planted.
#[cfg(not(feature = "planted-defects"))]
pub(crate) const fn class_of(class: ClientClass, _id: &str) -> ClientClass {
    class
}

/// Whether the environment of this build names a defect.
#[cfg(not(feature = "planted-defects"))]
pub(crate) const fn is_planted(_name: &str) -> bool {
    false
}
