//! Protobuf messages and gRPC stubs, generated from the `.proto` files in `proto/` of this crate.
//!
//! The Rust is committed, so that building needs neither `protoc` nor a build script. The test
//! `tests/generated.rs` keeps it equal to the `.proto` files and rewrites it on request.
//!
//! Numbers and names follow the fixtures "wire-july"; fields that neither gateway nor host reads
//! are not listed, and decoding drops them.

use std::fmt;

// The generated code names types of other packages by relative path, so the modules must nest
// as the packages do; the aliases below are what the rest of the project uses. `include!` keeps
// these files away from rustfmt, and this one attribute keeps the lints away.
#[expect(
    missing_docs,
    clippy::allow_attributes,
    clippy::allow_attributes_without_reason,
    clippy::module_inception,
    clippy::too_many_lines,
    reason = "the generator writes this code, see tests/generated.rs"
)]
mod packages {
    pub mod nodemanager {
        include!("generated/nodemanager.rs");
    }
    pub mod inference {
        pub mod inference {
            include!("generated/inference.inference.rs");
        }
    }
    pub mod devshard {
        pub mod v1 {
            include!("generated/devshard.v1.rs");
        }
    }
    pub mod cosmos {
        pub mod auth {
            pub mod v1beta1 {
                include!("generated/cosmos.auth.v1beta1.rs");
            }
        }
        pub mod tx {
            pub mod v1beta1 {
                include!("generated/cosmos.tx.v1beta1.rs");
            }
        }
        pub mod base {
            pub mod abci {
                pub mod v1beta1 {
                    include!("generated/cosmos.base.abci.v1beta1.rs");
                }
            }
            pub mod tendermint {
                pub mod v1beta1 {
                    include!("generated/cosmos.base.tendermint.v1beta1.rs");
                }
            }
        }
        pub mod crypto {
            pub mod secp256k1 {
                include!("generated/cosmos.crypto.secp256k1.rs");
            }
            pub mod keyring {
                pub mod v1 {
                    include!("generated/cosmos.crypto.keyring.v1.rs");
                }
            }
        }
    }
}

pub use packages::cosmos::auth::v1beta1 as auth;
pub use packages::cosmos::base::abci::v1beta1 as abci;
pub use packages::cosmos::base::tendermint::v1beta1 as tendermint;
pub(crate) use packages::cosmos::crypto::keyring::v1 as keyring_record;
pub use packages::cosmos::crypto::secp256k1;
pub use packages::cosmos::tx::v1beta1 as tx;
pub use packages::devshard::v1 as devshard;
pub use packages::inference::inference;
pub use packages::nodemanager;
pub use prost_types::{Any, Timestamp};

// The generator leaves `Debug` out for everything that holds a private key.

impl fmt::Debug for secp256k1::PrivKey {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str("PrivKey(hidden)")
    }
}

impl fmt::Debug for keyring_record::Record {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(formatter, "Record({:?}, private key hidden)", self.name)
    }
}

impl fmt::Debug for keyring_record::record::Local {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str("Local(hidden)")
    }
}
