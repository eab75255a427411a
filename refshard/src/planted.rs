//! What a planted defect takes effect on. Call sites name it in every build; only one with the feature `planted-defects`
//! has a defect that looks at it.

/// On what a planted defect takes effect: the self-test holds witnesses against it.
#[derive(Clone, Copy, Debug)]
pub enum On<'a> {
    /// The request of this body, by the marker in it.
    Body(&'a [u8]),
    /// Nonce or inference of an escrow.
    Nonce(&'a str, u64),
    /// The program as such.
    Program,
}
