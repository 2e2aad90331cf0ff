//! Compacts a state into another folder, however little that spares: `compact SOURCE TARGET KEY`. The tests of the in-kernel
//! agent restore what it wrote.

use hop_state::{form, log, writer};
use std::error::Error;
use std::path::PathBuf;

fn main() -> Result<(), Box<dyn Error>> {
    let mut arguments = std::env::args_os().skip(1).map(PathBuf::from);
    let (Some(source), Some(target), Some(key)) = (arguments.next(), arguments.next(), arguments.next())
    else {
        return Err("usage: compact SOURCE TARGET KEY".into());
    };
    let key: [u8; 32] = std::fs::read(key)?.try_into().map_err(|_| "a key has 32 bytes")?;
    let head = form::prove_head(&std::fs::read(source.join("head"))?, &key)?;
    std::fs::create_dir(&target)?;
    let key = log::Key::new(key);
    let log = writer::Writer::compacted_anyway(&target, &key, &source, head.length as u64, &head.mac)?;
    log.ok_or("the state is not as the form says")?.commit()?;
    Ok(())
}
