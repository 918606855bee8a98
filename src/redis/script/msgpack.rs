//! MessagePack, as the script reads and writes it: one argument and one reply.

use std::ops::Range;

use rmp::{decode, encode};

/// An encoder.
#[derive(Clone, Debug, Default)]
pub(crate) struct MsgPackWriter(Vec<u8>);

impl MsgPackWriter {
    /// Removes all, and keeps the memory.
    pub(crate) fn clear(&mut self) {
        self.0.clear();
    }

    pub(crate) fn as_bytes(&self) -> &[u8] {
        &self.0
    }

    pub(crate) fn append(&mut self, other: &Self) {
        self.0.extend_from_slice(&other.0);
    }

    /// Reserves a number, to be set later. Returns where its bytes are.
    pub(crate) fn reserve_u32(&mut self) -> Range<usize> {
        written(encode::write_u32(&mut self.0, 0));
        self.0.len() - size_of::<u32>()..self.0.len()
    }

    /// Sets a reserved number.
    pub(crate) fn patch_u32(&mut self, reserved: Range<usize>, number: u32) {
        if let Some(bytes) = self.0.get_mut(reserved) {
            bytes.copy_from_slice(&number.to_be_bytes());
        }
    }

    /// Begins a list of `len` items.
    pub(crate) fn list(&mut self, len: usize) {
        let len = u32::try_from(len).unwrap_or(u32::MAX);
        written(encode::write_array_len(&mut self.0, len));
    }

    pub(crate) fn uint(&mut self, number: u64) {
        written(encode::write_uint(&mut self.0, number));
    }

    pub(crate) fn int(&mut self, number: i64) {
        written(encode::write_sint(&mut self.0, number));
    }

    pub(crate) fn nil(&mut self) {
        written(encode::write_nil(&mut self.0));
    }

    pub(crate) fn text(&mut self, text: &str) {
        written(encode::write_str(&mut self.0, text));
    }
}

/// Writing to memory does not fail.
fn written<T, E>(result: Result<T, E>) {
    debug_assert!(result.is_ok());
}

/// A decoder.
#[derive(Debug)]
pub(crate) struct MsgPackReader<'a>(&'a [u8]);

impl<'a> MsgPackReader<'a> {
    /// The list that `bytes` encode; `None` if they do not.
    pub(crate) fn list(mut bytes: &'a [u8]) -> Option<Self> {
        decode::read_array_len(&mut bytes).ok()?;
        Some(Self(bytes))
    }

    pub(crate) fn int(&mut self) -> Option<i64> {
        decode::read_int(&mut self.0).ok()
    }

    pub(crate) fn text(&mut self) -> Option<&'a [u8]> {
        let len = decode::read_str_len(&mut self.0).ok()?;
        let (text, rest) = self.0.split_at_checked(usize::try_from(len).ok()?)?;
        self.0 = rest;
        Some(text)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn encoded_values_decode_to_themselves() {
        let mut packed = MsgPackWriter::default();
        let ints = [
            0,
            1,
            -1,
            127,
            128,
            -33,
            1 << 40,
            -(1 << 52),
            i64::MAX,
            i64::MIN,
        ];
        packed.list(ints.len() + 2);
        ints.iter().for_each(|int| packed.int(*int));
        packed.uint(u64::from(u32::MAX));
        packed.text("who");
        let mut read = MsgPackReader::list(packed.as_bytes()).expect("a list");
        for int in ints {
            assert_eq!(read.int(), Some(int));
        }
        assert_eq!(read.int(), Some(i64::from(u32::MAX)));
        assert_eq!(read.text(), Some(&b"who"[..]));
        assert_eq!((read.int(), read.text()), (None, None));
    }

    #[test]
    fn a_reserved_number_is_patched_in_place() {
        let mut packed = MsgPackWriter::default();
        packed.uint(7);
        let reserved = packed.reserve_u32();
        packed.text("who");
        packed.patch_u32(reserved, 70_000);
        let mut read = MsgPackReader(packed.as_bytes());
        assert_eq!((read.int(), read.int()), (Some(7), Some(70_000)));
        assert_eq!(read.text(), Some(&b"who"[..]));
    }
}
