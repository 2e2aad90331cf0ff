//! The kernel's own description of its types (BTF): where a field lies, and the values of enumerators.
//!
//! Only what [`crate::count`] asks for. Kernels are built differently, so nothing about their structures is assumed.

const MAGIC: u16 = 0xeb9f;
const STRUCT: u32 = 4;
const UNION: u32 = 5;
const ENUM: u32 = 6;
const FUNCTION: u32 = 12;
/// Typedef, volatile, const, restrict, type tag: names and qualities of another type.
const QUALIFIERS: [u32; 5] = [8, 9, 10, 11, 18];
/// Words that follow a type's three, per kind: fixed, and per element.
const MORE: [(u32, u32); 20] = [
    (0, 0), // void
    (1, 0), // int
    (0, 0), // pointer
    (3, 0), // array
    (0, 3), // struct
    (0, 3), // union
    (0, 2), // enum
    (0, 0), // forward
    (0, 0), // typedef
    (0, 0), // volatile
    (0, 0), // const
    (0, 0), // restrict
    (0, 0), // function
    (0, 2), // prototype
    (1, 0), // variable
    (0, 3), // section
    (0, 0), // float
    (1, 0), // declaration tag
    (0, 0), // type tag
    (0, 3), // enum64
];

/// Read-only, over the bytes of `/sys/kernel/btf/vmlinux`.
#[derive(Debug)]
pub(crate) struct Btf<'a> {
    strings: &'a [u8],
    types: &'a [u8],
    /// Start of each type in `types`; the first type is number 1.
    starts: Vec<usize>,
}

/// One type's head.
#[derive(Debug, Clone, Copy)]
struct Head {
    name: u32,
    kind: u32,
    count: u32,
    /// The members' offsets carry the sizes of bit fields.
    with_bits: bool,
    at: usize,
}

impl<'a> Btf<'a> {
    /// None: not BTF, or with kinds of types that are not known here.
    pub(crate) fn parse(bytes: &'a [u8]) -> Option<Self> {
        let magic = u16::from_le_bytes(bytes.get(..2)?.try_into().ok()?);
        if magic != MAGIC {
            return None;
        }
        let word = |at: usize| word(bytes, at).and_then(|w| usize::try_from(w).ok());
        let head = word(4)?;
        let section = |offset: usize, length: usize| {
            let start = head.checked_add(word(offset)?)?;
            bytes.get(start..start.checked_add(word(length)?)?)
        };
        let mut btf = Self {
            types: section(8, 12)?,
            strings: section(16, 20)?,
            starts: Vec::with_capacity(200_000),
        };
        let mut at = 0;
        while at < btf.types.len() {
            let head = btf.head_at(at)?;
            btf.starts.push(at);
            let (fixed, each) = MORE.get(usize::try_from(head.kind).ok()?)?;
            at += usize::try_from(4 * (3 + fixed + each * head.count)).ok()?;
        }
        Some(btf)
    }

    fn head_at(&self, at: usize) -> Option<Head> {
        let info = word(self.types, at + 4)?;
        Some(Head {
            name: word(self.types, at)?,
            kind: info >> 24 & 0x1f,
            count: info & 0xffff,
            with_bits: info >> 31 == 1,
            at,
        })
    }

    fn unqualified(&self, mut number: u32) -> Option<Head> {
        loop {
            let index = usize::try_from(number).ok()?.checked_sub(1)?;
            let head = self.head_at(*self.starts.get(index)?)?;
            if !QUALIFIERS.contains(&head.kind) {
                return Some(head);
            }
            number = word(self.types, head.at + 8)?;
        }
    }

    fn is_named(&self, offset: u32, name: &str) -> bool {
        let text = usize::try_from(offset).ok().and_then(|o| self.strings.get(o..));
        text.and_then(|t| t.strip_prefix(name.as_bytes()))
            .is_some_and(|rest| rest.first() == Some(&0))
    }

    /// The offset in bytes of a structure's field.
    pub(crate) fn offset(&self, structure: &str, field: &str) -> Option<i16> {
        let (offset, _) = self.field(self.find(STRUCT, structure)?, field)?;
        i16::try_from(offset).ok()
    }

    /// The number of a function.
    pub(crate) fn function(&self, name: &str) -> Option<u32> {
        self.find(FUNCTION, name)
    }

    /// The value of an enumerator of the enumeration `name`.
    pub(crate) fn enumerator(&self, name: &str, wanted: &str) -> Option<u32> {
        let head = self.unqualified(self.find(ENUM, name)?)?;
        (0..head.count).find_map(|i| {
            let at = head.at + usize::try_from(12 + 8 * i).ok()?;
            self.is_named(word(self.types, at)?, wanted)
                .then(|| word(self.types, at + 4))?
        })
    }

    fn find(&self, kind: u32, name: &str) -> Option<u32> {
        let is_it = |at: &usize| {
            let head = self.head_at(*at);
            head.is_some_and(|head| head.kind == kind && self.is_named(head.name, name))
        };
        let number = 1 + self.starts.iter().position(is_it)?;
        u32::try_from(number).ok()
    }

    /// The offset in bytes of a field, including fields of nameless structures and unions inside, and the field's type.
    fn field(&self, number: u32, name: &str) -> Option<(u32, u32)> {
        let head = self.unqualified(number)?;
        if !matches!(head.kind, STRUCT | UNION) {
            return None;
        }
        for i in 0..head.count {
            let at = head.at + usize::try_from(12 + 12 * i).ok()?;
            let (member, kind) = (word(self.types, at)?, word(self.types, at + 4)?);
            let bits = word(self.types, at + 8)?;
            if head.with_bits && bits >> 24 != 0 {
                continue; // No bit field is asked for.
            }
            let offset = (bits & if head.with_bits { 0x00ff_ffff } else { u32::MAX }) / 8;
            if member == 0 {
                if let Some((inside, kind)) = self.field(kind, name) {
                    return Some((offset + inside, kind));
                }
            } else if self.is_named(member, name) {
                return Some((offset, kind));
            }
        }
        None
    }
}

fn word(bytes: &[u8], at: usize) -> Option<u32> {
    Some(u32::from_le_bytes(
        bytes.get(at..at.checked_add(4)?)?.try_into().ok()?,
    ))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_not_btf_is_refused() {
        for bytes in [&b""[..], b"\x7fELF", &[0x9f, 0xeb, 1, 0, 24, 0, 0, 0]] {
            assert!(Btf::parse(bytes).is_none());
        }
    }

    #[test]
    fn fields_of_this_kernel_are_found() {
        let Ok(bytes) = std::fs::read("/sys/kernel/btf/vmlinux") else {
            eprintln!("SKIPPED: this kernel has no BTF");
            return;
        };
        let btf = Btf::parse(&bytes).unwrap();
        let inode = btf.find(STRUCT, "inode").unwrap();
        assert_eq!(btf.find(STRUCT, "no_such_structure"), None);
        assert!(btf.offset("file", "f_inode").is_some());
        assert_eq!(btf.offset("inode", "i_mode"), Some(0));
        assert!(btf.field(inode, "no_such_field").is_none());
        // Through the qualities of the field's type.
        let (_, path) = btf.field(btf.find(STRUCT, "file").unwrap(), "f_path").unwrap();
        assert!(btf.field(path, "dentry").is_some());
    }
}
