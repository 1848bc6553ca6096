//! Reads a pickle as plain values without executing anything.
//!
//! Values lie in one arena and refer to each other by number. That is why a list that a hundred thousand
//! events share (the Python frames of one call site) is kept once, why a small file that refers to itself
//! in a tower of lists stays small, and why nothing here recurses, however deep the file nests. A general
//! reader that hands out owned values would copy what is shared at every reference.

use std::collections::HashMap;
use std::ops::Range;

use headroom_base::mutant;

use super::opcodes as op;

/// Containers that may be begun and not ended at once; Python itself gives up at a few thousand.
const MOST_OPEN: usize = 1 << 16;
/// References to earlier values, for each value that may be there. A snapshot has about two: the keys of its events.
const MOST_REFERENCES_PER_VALUE: usize = 4;

/// Why bytes are not a pickle of plain values.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum PickleError {
    /// The bytes end before the pickle does.
    #[error(
        "it ends after {position} bytes in the middle of a value: the file was cut off when it was written or copied"
    )]
    Truncated {
        /// How many bytes there are.
        position: usize,
    },
    /// It asks for code to be loaded or called.
    #[error(
        "at byte {position} it asks Python to load or call something ({opcode}); a memory snapshot never does, and nothing was executed"
    )]
    Executes {
        /// Where.
        position: usize,
        /// Which opcode.
        opcode: &'static str,
    },
    /// It does not begin like a pickle of protocol 2 or later.
    #[error("it is not a pickle: it begins with the byte {byte:#04x}")]
    NotAPickle {
        /// The first byte.
        byte: u8,
    },
    /// A protocol newer than any known one.
    #[error("it has pickle protocol {protocol}, known are 2 to 5")]
    UnknownProtocol {
        /// Which.
        protocol: u8,
    },
    /// A byte that is no opcode for a plain value.
    #[error("at byte {position} stands {byte:#04x}, which builds no plain value")]
    UnknownOpcode {
        /// Where.
        position: usize,
        /// What.
        byte: u8,
    },
    /// It takes what is not there, or fills what is no container.
    #[error("at byte {position} it contradicts itself: {what}")]
    Inconsistent {
        /// Where.
        position: usize,
        /// How.
        what: &'static str,
    },
    /// More values than this program is willing to hold.
    #[error("it holds more than {most_values} values")]
    TooLarge {
        /// How many it may hold.
        most_values: usize,
    },
}

/// Refers to a value of a [`Pickle`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ValueId(u32);

/// A plain value. Containers refer to their content.
#[derive(Clone, Debug, PartialEq)]
pub enum Value {
    /// `None`.
    None,
    /// `True` or `False`.
    Bool(bool),
    /// An integer of 64 bits.
    Int(i64),
    /// An integer that needs more.
    LargeInt,
    /// A float.
    Float(f64),
    /// A text, as the bytes it has in the file.
    Text(Range<usize>),
    /// Bytes, as they are in the file.
    Bytes(Range<usize>),
    /// A list.
    List(Vec<ValueId>),
    /// A tuple.
    Tuple(Vec<ValueId>),
    /// A dictionary, in the file's order; a key may come twice, then the last one holds.
    Dict(Vec<(ValueId, ValueId)>),
}

/// A pickle that was read: its values and the bytes its texts lie in.
#[derive(Debug)]
pub struct Pickle<'a> {
    bytes: &'a [u8],
    values: Vec<Value>,
    root: ValueId,
}

impl<'a> Pickle<'a> {
    /// Reads the one pickle that `bytes` begin with, of at most `most_values` values.
    ///
    /// # Errors
    /// When they are cut off, are no pickle, would execute something, or hold too much.
    pub fn read(bytes: &'a [u8], most_values: usize) -> Result<Self, PickleError> {
        match bytes {
            [] => return Err(PickleError::Truncated { position: 0 }),
            [op::PROTO, ..] => {}
            [byte, ..] => return Err(PickleError::NotAPickle { byte: *byte }),
        }
        let (values, stack, marks, memo) = (Vec::new(), Vec::new(), Vec::new(), HashMap::new());
        let mut machine = Machine { bytes, position: 0, most_values, values, stack, marks, memo, references: 0 };
        while machine.step()? {}
        let root = machine.pop()?;
        Ok(Self { bytes, values: machine.values, root })
    }

    /// The outermost value.
    pub const fn root(&self) -> ValueId {
        self.root
    }

    /// A value.
    pub fn value(&self, id: ValueId) -> &Value {
        &self.values[id.0 as usize]
    }

    /// The text of a value, characters that are no UTF-8 replaced; none where it is no text.
    pub fn text(&self, id: ValueId) -> Option<std::borrow::Cow<'a, str>> {
        match self.value(id) {
            Value::Text(range) => Some(String::from_utf8_lossy(&self.bytes[range.clone()])),
            _ => None,
        }
    }

    /// The value of a text key in a dictionary; none where it has no such key or is no dictionary.
    pub fn get(&self, dict: ValueId, key: &str) -> Option<ValueId> {
        let Value::Dict(entries) = self.value(dict) else { return None };
        let is_key =
            |id: ValueId| matches!(self.value(id), Value::Text(range) if self.bytes[range.clone()] == *key.as_bytes());
        entries.iter().rev().find(|(name, _)| is_key(*name)).map(|(_, value)| *value)
    }
}

/// The stack machine of the pickle format.
struct Machine<'a> {
    bytes: &'a [u8],
    position: usize,
    most_values: usize,
    values: Vec<Value>,
    stack: Vec<ValueId>,
    marks: Vec<usize>,
    memo: HashMap<u32, ValueId>,
    references: usize,
}

impl Machine<'_> {
    /// One opcode; false at the end.
    fn step(&mut self) -> Result<bool, PickleError> {
        let position = self.position;
        let opcode = self.take::<1>()?[0];
        match opcode {
            op::STOP => return Ok(false),
            op::PROTO => self.protocol()?,
            op::FRAME => drop(self.take::<8>()?),
            op::MARK => self.mark()?,
            op::POP => drop(self.pop()?),
            op::POP_MARK => drop(self.pop_mark()?),
            op::BINPUT => self.memoize_at(|m| Ok(u32::from(m.take::<1>()?[0])))?,
            op::LONG_BINPUT => self.memoize_at(|m| Ok(u32::from_le_bytes(m.take()?)))?,
            op::MEMOIZE => self.memoize_at(|m| Ok(u32::try_from(m.memo.len()).unwrap_or(u32::MAX)))?,
            op::BINGET => self.recall(|m| Ok(u32::from(m.take::<1>()?[0])))?,
            op::LONG_BINGET => self.recall(|m| Ok(u32::from_le_bytes(m.take()?)))?,
            op::APPEND | op::APPENDS => self.append(opcode == op::APPENDS)?,
            op::SETITEM | op::SETITEMS => self.set_items(opcode == op::SETITEMS)?,
            _ => {
                let value = self.scalar(opcode).transpose().or_else(|| self.container(opcode).transpose());
                match value {
                    Some(value) => self.push(value?)?,
                    None => return Err(self.refused(opcode, position)),
                }
            }
        }
        Ok(true)
    }

    fn refused(&self, opcode: u8, position: usize) -> PickleError {
        match op::executing(opcode) {
            Some(opcode) => PickleError::Executes { position, opcode },
            None => PickleError::UnknownOpcode { position, byte: opcode },
        }
    }

    fn protocol(&mut self) -> Result<(), PickleError> {
        let protocol = self.take::<1>()?[0];
        if (2..=5).contains(&protocol) { Ok(()) } else { Err(PickleError::UnknownProtocol { protocol }) }
    }

    fn scalar(&mut self, opcode: u8) -> Result<Option<Value>, PickleError> {
        Ok(Some(match opcode {
            op::NONE => Value::None,
            op::NEWTRUE => Value::Bool(true),
            op::NEWFALSE => Value::Bool(false),
            op::BININT => Value::Int(i32::from_le_bytes(self.take()?).into()),
            op::BININT1 => Value::Int(self.take::<1>()?[0].into()),
            op::BININT2 => Value::Int(u16::from_le_bytes(self.take()?).into()),
            op::BINFLOAT => Value::Float(f64::from_be_bytes(self.take()?)),
            op::LONG1 | op::LONG4 => {
                let range = self.counted(if opcode == op::LONG1 { 1 } else { 4 })?;
                integer(&self.bytes[range])
            }
            op::SHORT_BINUNICODE => Value::Text(self.counted(1)?),
            op::BINUNICODE => Value::Text(self.counted(4)?),
            op::BINUNICODE8 => Value::Text(self.counted(8)?),
            op::SHORT_BINBYTES => Value::Bytes(self.counted(1)?),
            op::BINBYTES => Value::Bytes(self.counted(4)?),
            op::BINBYTES8 => Value::Bytes(self.counted(8)?),
            _ => return Ok(None),
        }))
    }

    fn container(&mut self, opcode: u8) -> Result<Option<Value>, PickleError> {
        Ok(Some(match opcode {
            op::EMPTY_TUPLE => Value::Tuple(Vec::new()),
            op::TUPLE1 => Value::Tuple(self.pop_many(1)?),
            op::TUPLE2 => Value::Tuple(self.pop_many(2)?),
            op::TUPLE3 => Value::Tuple(self.pop_many(3)?),
            op::TUPLE => Value::Tuple(self.pop_mark()?),
            op::EMPTY_LIST => Value::List(Vec::new()),
            op::LIST => Value::List(self.pop_mark()?),
            op::EMPTY_DICT => Value::Dict(Vec::new()),
            op::DICT => {
                let flat = self.pop_mark()?;
                Value::Dict(self.pairs(&flat)?)
            }
            _ => return Ok(None),
        }))
    }

    fn append(&mut self, many: bool) -> Result<(), PickleError> {
        let items = if many { self.pop_mark()? } else { self.pop_many(1)? };
        match self.top()? {
            Value::List(list) => list.extend(items),
            _ => return Err(self.inconsistent("items are added to what is no list")),
        }
        Ok(())
    }

    fn set_items(&mut self, many: bool) -> Result<(), PickleError> {
        let flat = if many { self.pop_mark()? } else { self.pop_many(2)? };
        let pairs = self.pairs(&flat)?;
        match self.top()? {
            Value::Dict(entries) => entries.extend(pairs),
            _ => return Err(self.inconsistent("keys are set in what is no dictionary")),
        }
        Ok(())
    }

    fn pairs(&self, flat: &[ValueId]) -> Result<Vec<(ValueId, ValueId)>, PickleError> {
        if !flat.len().is_multiple_of(2) {
            return Err(self.inconsistent("a key has no value"));
        }
        Ok(flat.chunks_exact(2).map(|pair| (pair[0], pair[1])).collect())
    }

    fn mark(&mut self) -> Result<(), PickleError> {
        if self.marks.len() >= MOST_OPEN {
            return Err(self.inconsistent("it begins container upon container and ends none"));
        }
        self.marks.push(self.stack.len());
        Ok(())
    }

    fn memoize_at(&mut self, index: impl FnOnce(&mut Self) -> Result<u32, PickleError>) -> Result<(), PickleError> {
        let index = index(self)?;
        let top = *self.stack.last().ok_or_else(|| self.inconsistent("nothing is there to be remembered"))?;
        self.memo.insert(index, top);
        if self.memo.len() > self.values.len() {
            return Err(self.inconsistent("it remembers more values than it has"));
        }
        Ok(())
    }

    fn recall(&mut self, index: impl FnOnce(&mut Self) -> Result<u32, PickleError>) -> Result<(), PickleError> {
        let index = index(self)?;
        let id =
            *self.memo.get(&index).ok_or_else(|| self.inconsistent("it refers to a value that it never stored"))?;
        self.references += 1;
        if self.references / MOST_REFERENCES_PER_VALUE >= self.most_values {
            return Err(PickleError::TooLarge { most_values: self.most_values });
        }
        self.stack.push(id);
        Ok(())
    }

    fn push(&mut self, value: Value) -> Result<(), PickleError> {
        let too_large = PickleError::TooLarge { most_values: self.most_values };
        let full = mutant!(
            "pickle_without_limit",
            "a file of a few hundred million bytes takes all the memory of the machine that opens it",
            right: self.values.len() >= self.most_values,
            wrong: false,
        );
        if full {
            return Err(too_large);
        }
        self.stack.push(ValueId(u32::try_from(self.values.len()).map_err(|_| too_large)?));
        self.values.push(value);
        Ok(())
    }

    fn top(&mut self) -> Result<&mut Value, PickleError> {
        let id = *self.stack.last().ok_or_else(|| self.inconsistent("nothing is there to be filled"))?;
        Ok(&mut self.values[id.0 as usize])
    }

    fn pop(&mut self) -> Result<ValueId, PickleError> {
        self.stack.pop().ok_or_else(|| self.inconsistent("it takes a value that is not there"))
    }

    fn pop_many(&mut self, count: usize) -> Result<Vec<ValueId>, PickleError> {
        let from = self.stack.len().checked_sub(count);
        let from = from.ok_or_else(|| self.inconsistent("it takes values that are not there"))?;
        Ok(self.stack.split_off(from))
    }

    fn pop_mark(&mut self) -> Result<Vec<ValueId>, PickleError> {
        let from = self.marks.pop().filter(|from| *from <= self.stack.len());
        let from = from.ok_or_else(|| self.inconsistent("it goes back to a mark that is not there"))?;
        Ok(self.stack.split_off(from))
    }

    fn inconsistent(&self, what: &'static str) -> PickleError {
        PickleError::Inconsistent { position: self.position, what }
    }

    fn take<const N: usize>(&mut self) -> Result<[u8; N], PickleError> {
        let range = self.range(N)?;
        Ok(std::array::from_fn(|index| self.bytes[range.start + index]))
    }

    /// The bytes after a little-endian length of `width` bytes.
    fn counted(&mut self, width: usize) -> Result<Range<usize>, PickleError> {
        let length = self.range(width)?;
        let length = self.bytes[length].iter().rev().fold(0_u64, |sum, byte| sum << 8 | u64::from(*byte));
        // A length no address space holds is beyond the end of the file as well.
        self.range(usize::try_from(length).unwrap_or(usize::MAX))
    }

    fn range(&mut self, length: usize) -> Result<Range<usize>, PickleError> {
        let end = self.position.checked_add(length).filter(|end| *end <= self.bytes.len());
        let end = end.ok_or(PickleError::Truncated { position: self.bytes.len() })?;
        let range = self.position..end;
        self.position = end;
        Ok(range)
    }
}

/// A little-endian two's complement number of any length.
fn integer(bytes: &[u8]) -> Value {
    let negative = bytes.last().is_some_and(|byte| byte & 0x80 != 0);
    let fill = if negative { 0xff } else { 0 };
    let small = bytes.len() <= 8 || bytes[8..].iter().all(|byte| *byte == fill) && (bytes[7] & 0x80 != 0) == negative;
    if !small {
        return Value::LargeInt;
    }
    Value::Int(i64::from_le_bytes(std::array::from_fn(|index| bytes.get(index).copied().unwrap_or(fill))))
}
