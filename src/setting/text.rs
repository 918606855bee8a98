//! The text of a value, as [`Changes`](crate::changes::Changes) show it: that of a document, without quotes.

use std::fmt::{self, Display, Write as _};

use serde::{
    Serialize, Serializer,
    ser::{Impossible, SerializeMap, SerializeSeq, SerializeStruct},
};

/// The text of a value that is not set.
const NONE: &str = "none";

/// The text of a value: `none`, `5`, `header:x-key`, `[10/min, 20/min]`, `{ max_units = 64, ttl = 50ms }`.
pub(crate) fn to_text<T: Serialize + ?Sized>(value: &T) -> String {
    let mut text = String::new();
    let written = value.serialize(Text(&mut text));
    debug_assert!(written.is_ok(), "a setting of a kind that has no text");
    text
}

struct Text<'a>(&'a mut String);

/// An array or a table whose entries are written one by one.
struct Entries<'a> {
    text: &'a mut String,
    is_empty: bool,
    is_table: bool,
}

impl<'a> Text<'a> {
    fn write(self, value: impl Display) -> fmt::Result {
        write!(self.0, "{value}")
    }

    fn entries(self, is_table: bool) -> Result<Entries<'a>, fmt::Error> {
        Ok(Entries {
            text: self.0,
            is_empty: true,
            is_table,
        })
    }
}

impl Entries<'_> {
    fn add<T: Serialize + ?Sized>(&mut self, name: Option<&str>, value: &T) -> fmt::Result {
        self.text.push_str(match (self.is_empty, self.is_table) {
            (true, true) => "{ ",
            (true, false) => "[",
            (false, _) => ", ",
        });
        self.is_empty = false;
        if let Some(name) = name {
            write!(self.text, "{name} = ")?;
        }
        value.serialize(Text(self.text))
    }

    /// Ends it. A table without entries is written as `none`.
    fn finish(self) -> fmt::Result {
        self.text.push_str(match (self.is_empty, self.is_table) {
            (true, true) => NONE,
            (true, false) => "[]",
            (false, true) => " }",
            (false, false) => "]",
        });
        Ok(())
    }
}

impl SerializeSeq for Entries<'_> {
    type Ok = ();
    type Error = fmt::Error;

    fn serialize_element<T: Serialize + ?Sized>(&mut self, value: &T) -> fmt::Result {
        self.add(None, value)
    }

    fn end(self) -> fmt::Result {
        self.finish()
    }
}

impl SerializeStruct for Entries<'_> {
    type Ok = ();
    type Error = fmt::Error;

    fn serialize_field<T: Serialize + ?Sized>(
        &mut self,
        name: &'static str,
        value: &T,
    ) -> fmt::Result {
        self.add(Some(name), value)
    }

    fn end(self) -> fmt::Result {
        self.finish()
    }
}

impl SerializeMap for Entries<'_> {
    type Ok = ();
    type Error = fmt::Error;

    fn serialize_key<T: Serialize + ?Sized>(&mut self, key: &T) -> fmt::Result {
        self.add(None, key)
    }

    fn serialize_value<T: Serialize + ?Sized>(&mut self, value: &T) -> fmt::Result {
        self.text.push_str(" = ");
        value.serialize(Text(self.text))
    }

    fn end(self) -> fmt::Result {
        self.finish()
    }
}

/// The methods for values of one kind, and for those that no setting has.
macro_rules! methods {
    (displayed: $($method:ident($type:ty)),+; none: $($none:ident),+;
     unused: $($unused:ident$(<$generic:ident>)?($($argument:ty),*) -> $ok:ty),+) => {
        $(fn $method(self, value: $type) -> fmt::Result {
            self.write(value)
        })+
        $(fn $none(self) -> fmt::Result {
            self.write(NONE)
        })+
        $(fn $unused$(<$generic: Serialize + ?Sized>)?(self, $(_: $argument),*) -> Result<$ok, fmt::Error> {
            Err(fmt::Error)
        })+
    };
}

impl<'a> Serializer for Text<'a> {
    type Ok = ();
    type Error = fmt::Error;
    type SerializeSeq = Entries<'a>;
    type SerializeMap = Entries<'a>;
    type SerializeStruct = Entries<'a>;
    type SerializeTuple = Impossible<(), fmt::Error>;
    type SerializeTupleStruct = Impossible<(), fmt::Error>;
    type SerializeTupleVariant = Impossible<(), fmt::Error>;
    type SerializeStructVariant = Impossible<(), fmt::Error>;

    methods! {
        displayed: serialize_bool(bool), serialize_char(char), serialize_str(&str),
            serialize_i8(i8), serialize_i16(i16), serialize_i32(i32), serialize_i64(i64),
            serialize_u8(u8), serialize_u16(u16), serialize_u32(u32), serialize_u64(u64),
            serialize_f32(f32), serialize_f64(f64);
        none: serialize_none, serialize_unit;
        unused: serialize_bytes(&[u8]) -> (),
            serialize_unit_struct(&'static str) -> (),
            serialize_tuple(usize) -> Self::SerializeTuple,
            serialize_tuple_struct(&'static str, usize) -> Self::SerializeTupleStruct,
            serialize_tuple_variant(&'static str, u32, &'static str, usize) -> Self::SerializeTupleVariant,
            serialize_struct_variant(&'static str, u32, &'static str, usize) -> Self::SerializeStructVariant,
            serialize_newtype_variant<T>(&'static str, u32, &'static str, &T) -> ()
    }

    fn serialize_some<T: Serialize + ?Sized>(self, value: &T) -> fmt::Result {
        value.serialize(self)
    }

    fn serialize_newtype_struct<T: Serialize + ?Sized>(
        self,
        _: &'static str,
        value: &T,
    ) -> fmt::Result {
        value.serialize(self)
    }

    fn serialize_unit_variant(self, _: &'static str, _: u32, name: &'static str) -> fmt::Result {
        self.write(name)
    }

    fn serialize_seq(self, _: Option<usize>) -> Result<Entries<'a>, fmt::Error> {
        self.entries(false)
    }

    fn serialize_map(self, _: Option<usize>) -> Result<Entries<'a>, fmt::Error> {
        self.entries(true)
    }

    fn serialize_struct(self, _: &'static str, _: usize) -> Result<Entries<'a>, fmt::Error> {
        self.entries(true)
    }
}
