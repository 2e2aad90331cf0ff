//! The Slurm series of a built gresshopper.so, read from the file without a load.

use hop_slurm::Version;
use object::{Object as _, ObjectSegment as _, ObjectSymbol as _};

/// The number compared by Slurm's loader with its own.
const SYMBOL: &str = "plugin_version";

/// Returns the Slurm release named in the file, or the reason for its absence.
pub(crate) fn version(file: &[u8]) -> Result<Version, String> {
    let file = object::File::parse(file).map_err(|_| "it is no library".to_owned())?;
    let symbol = file
        .dynamic_symbols()
        .find(|symbol| symbol.name() == Ok(SYMBOL))
        .ok_or_else(|| "it is no plugin of Slurm's: it was built without Slurm's headers".to_owned())?;
    let bytes = file
        .segments()
        .find_map(|segment| segment.data_range(symbol.address(), 4).ok().flatten())
        .and_then(|bytes| <[u8; 4]>::try_from(bytes).ok())
        .ok_or_else(|| "its version can't be read".to_owned())?;
    let number = match file.is_little_endian() {
        true => u32::from_le_bytes(bytes),
        false => u32::from_be_bytes(bytes),
    };
    Ok(Version::from_number(number))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_no_plugin_is_told_apart() {
        assert_eq!(version(b"text"), Err("it is no library".to_owned()));
        let own = std::fs::read(std::env::current_exe().unwrap()).unwrap();
        assert!(version(&own).unwrap_err().contains("no plugin"));
    }
}
