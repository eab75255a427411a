//! Placeholder head, replaced by the crate's owner.
