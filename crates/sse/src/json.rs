//! Reading JSON whose shape is not trusted: one pass, a value of the wrong type is a fact and not
//! a failure. Only text that is not JSON is an error; unknown keys are skipped without storing.

use std::borrow::Cow;
use std::fmt;
use std::marker::PhantomData;

use serde::de::{Deserialize, Deserializer, Error, IgnoredAny, MapAccess, SeqAccess, Visitor};

/// What stood under a known key.
#[derive(Debug, Clone, Default, PartialEq)]
pub(crate) enum Field<T> {
    #[default]
    Missing,
    Null,
    /// There was something of another type.
    IllTyped,
    Value(T),
}

impl<T> Field<T> {
    pub(crate) fn value(&self) -> Option<&T> {
        if let Self::Value(value) = self { Some(value) } else { None }
    }

    pub(crate) fn ill_typed(&self) -> bool {
        matches!(self, Self::IllTyped)
    }

    pub(crate) fn absent(&self) -> bool {
        matches!(self, Self::Missing | Self::Null)
    }
}

/// A type that says which JSON types it can be made from; all others leave [`Field::IllTyped`].
pub(crate) trait Shape<'de>: Sized {
    fn from_text(_text: Cow<'de, str>) -> Option<Self> {
        None
    }

    fn from_unsigned(_number: u64) -> Option<Self> {
        None
    }

    fn from_negative(_number: i64) -> Option<Self> {
        None
    }

    fn from_list<A: SeqAccess<'de>>(mut list: A) -> Result<Option<Self>, A::Error> {
        while list.next_element::<IgnoredAny>()?.is_some() {}
        Ok(None)
    }

    fn from_object<A: MapAccess<'de>>(mut object: A) -> Result<Option<Self>, A::Error> {
        while object.next_entry::<IgnoredAny, IgnoredAny>()?.is_some() {}
        Ok(None)
    }
}

/// An object with some known keys. A repeated key overwrites, as common JSON readers do.
pub(crate) trait Keys<'de>: Default {
    /// For the few objects that may also come as a plain text.
    fn from_text(_text: Cow<'de, str>) -> Option<Self> {
        None
    }

    /// Takes the value of `key` from `object`, whether it wants it or not.
    fn take<A: MapAccess<'de>>(&mut self, key: &str, object: &mut A) -> Result<(), A::Error>;
}

impl<'de, K: Keys<'de>> Shape<'de> for K {
    fn from_text(text: Cow<'de, str>) -> Option<Self> {
        K::from_text(text)
    }

    fn from_object<A: MapAccess<'de>>(mut object: A) -> Result<Option<Self>, A::Error> {
        let mut keys = K::default();
        while let Some(Key(key)) = object.next_key()? {
            keys.take(&key, &mut object)?;
        }
        Ok(Some(keys))
    }
}

/// Skips the value of a key that nobody asked for.
pub(crate) fn skip_value<'de, A: MapAccess<'de>>(object: &mut A) -> Result<(), A::Error> {
    object.next_value::<IgnoredAny>().map(|_| ())
}

/// The first characters of a text of a peer, at most `bytes_max` bytes.
pub(crate) fn bounded(text: &str, bytes_max: usize) -> String {
    text[..text.floor_char_boundary(bytes_max)].to_owned()
}

/// An object key, borrowed unless it has escapes.
struct Key<'de>(Cow<'de, str>);

impl<'de> Deserialize<'de> for Key<'de> {
    fn deserialize<D: Deserializer<'de>>(from: D) -> Result<Self, D::Error> {
        struct KeyVisitor;
        impl<'de> Visitor<'de> for KeyVisitor {
            type Value = Key<'de>;

            fn expecting(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
                out.write_str("an object key")
            }

            fn visit_borrowed_str<E: Error>(self, key: &'de str) -> Result<Self::Value, E> {
                Ok(Key(Cow::Borrowed(key)))
            }

            fn visit_str<E: Error>(self, key: &str) -> Result<Self::Value, E> {
                Ok(Key(Cow::Owned(key.to_owned())))
            }
        }
        from.deserialize_str(KeyVisitor)
    }
}

impl<'de, T: Shape<'de>> Deserialize<'de> for Field<T> {
    fn deserialize<D: Deserializer<'de>>(from: D) -> Result<Self, D::Error> {
        from.deserialize_any(FieldVisitor(PhantomData))
    }
}

struct FieldVisitor<T>(PhantomData<T>);

/// A value of the wrong type is remembered as such and reading goes on.
fn typed<T>(value: Option<T>) -> Field<T> {
    value.map_or(Field::IllTyped, Field::Value)
}

impl<'de, T: Shape<'de>> Visitor<'de> for FieldVisitor<T> {
    type Value = Field<T>;

    fn expecting(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        out.write_str("any JSON value")
    }

    fn visit_unit<E: Error>(self) -> Result<Self::Value, E> {
        Ok(Field::Null)
    }

    fn visit_bool<E: Error>(self, _value: bool) -> Result<Self::Value, E> {
        Ok(Field::IllTyped)
    }

    fn visit_f64<E: Error>(self, _value: f64) -> Result<Self::Value, E> {
        Ok(Field::IllTyped)
    }

    fn visit_u64<E: Error>(self, value: u64) -> Result<Self::Value, E> {
        Ok(typed(T::from_unsigned(value)))
    }

    fn visit_i64<E: Error>(self, value: i64) -> Result<Self::Value, E> {
        Ok(typed(match u64::try_from(value) {
            Ok(value) => T::from_unsigned(value),
            Err(_) => T::from_negative(value),
        }))
    }

    fn visit_borrowed_str<E: Error>(self, value: &'de str) -> Result<Self::Value, E> {
        Ok(typed(T::from_text(Cow::Borrowed(value))))
    }

    fn visit_str<E: Error>(self, value: &str) -> Result<Self::Value, E> {
        Ok(typed(T::from_text(Cow::Owned(value.to_owned()))))
    }

    fn visit_seq<A: SeqAccess<'de>>(self, list: A) -> Result<Self::Value, A::Error> {
        T::from_list(list).map(typed)
    }

    fn visit_map<A: MapAccess<'de>>(self, object: A) -> Result<Self::Value, A::Error> {
        T::from_object(object).map(typed)
    }
}

impl<'de> Shape<'de> for Cow<'de, str> {
    fn from_text(text: Cow<'de, str>) -> Option<Self> {
        Some(text)
    }
}

impl<'de, T: Deserialize<'de>> Shape<'de> for Vec<T> {
    fn from_list<A: SeqAccess<'de>>(mut list: A) -> Result<Option<Self>, A::Error> {
        let mut items = Self::new();
        while let Some(item) = list.next_element()? {
            items.push(item);
        }
        Ok(Some(items))
    }
}
