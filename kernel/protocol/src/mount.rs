//! The kind of a folder's file system, by statfs(2). Whether a kind is fit for a purpose is for others to say.

use std::io;
use std::path::Path;

/// The kind of a file system.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Kind {
    /// Shared by several machines, under this name.
    Network(&'static str),
    /// In this machine's memory.
    Memory,
    /// Any other: usually a disk of this machine.
    Local,
}

impl Kind {
    /// The name of a file system that several machines share.
    pub fn network(self) -> Option<&'static str> {
        match self {
            Self::Network(name) => Some(name),
            Self::Memory | Self::Local => None,
        }
    }
}

/// The kind of the file system on which the path lies.
///
/// # Errors
/// If the path can't be examined.
pub fn kind_of(path: &Path) -> io::Result<Kind> {
    let stat = rustix::fs::statfs(path)?;
    // Some kernels extend the sign of the 32 bits.
    let magic = u32::try_from(stat.f_type & 0xffff_ffff);
    Ok(magic.map_or(Kind::Local, named))
}

/// The magic numbers of statfs(2), and of file systems outside Linux's own sources.
fn named(magic: u32) -> Kind {
    match magic {
        0x6969 => Kind::Network("NFS"),
        0x0bd0_0bd0 => Kind::Network("Lustre"),
        0x4750_4653 => Kind::Network("GPFS"),
        0x1983_0326 => Kind::Network("BeeGFS"),
        0x00c3_6400 => Kind::Network("CephFS"),
        0xff53_4d42 | 0xfe53_4d42 => Kind::Network("SMB"),
        0x0102_1994 | 0x8584_58f6 => Kind::Memory,
        _ => Kind::Local,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_kind_is_told_by_its_magic_number() {
        // NFS_SUPER_MAGIC and so on: those of Linux from its magic.h, others from their own sources.
        for (magic, kind) in [
            (0x6969, Kind::Network("NFS")),
            (0x0bd0_0bd0, Kind::Network("Lustre")),
            (0x4750_4653, Kind::Network("GPFS")),
            (0x1983_0326, Kind::Network("BeeGFS")),
            (0x00c3_6400, Kind::Network("CephFS")),
            (0xff53_4d42, Kind::Network("SMB")),
            (0xfe53_4d42, Kind::Network("SMB")),
            (0x0102_1994, Kind::Memory),
            (0x8584_58f6, Kind::Memory),
            (0xef53, Kind::Local),
        ] {
            assert_eq!(named(magic), kind, "{magic:x}");
        }
        assert_eq!(Kind::Network("NFS").network(), Some("NFS"));
        assert_eq!((Kind::Memory.network(), Kind::Local.network()), (None, None));
    }

    #[test]
    fn a_path_that_is_missing_has_no_kind() {
        assert!(kind_of(Path::new("/nowhere/at/all")).is_err());
        assert_eq!(kind_of(Path::new("/dev/shm")).unwrap(), Kind::Memory);
    }
}
