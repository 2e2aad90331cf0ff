//! A process that holds device memory, for the tests: `hold pattern BYTES` or `hold reserve UUID BYTES`, with the
//! driver library named by `FAKE_LIBCUDA`.

use hop_gpu::libcuda::LibCuda;
use hop_gpu::reserve::Want;
use std::path::PathBuf;

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let lib = std::env::var_os("FAKE_LIBCUDA").map(PathBuf::from);
    let cuda = LibCuda::load(lib.as_deref())?;
    let args: Vec<String> = std::env::args().skip(1).collect();
    match args.iter().map(String::as_str).collect::<Vec<_>>()[..] {
        ["pattern", bytes] => hop_gpu::bench::hold_pattern(&cuda, None, bytes.parse()?)?,
        ["reserve", uuid, bytes] => {
            let want = Want {
                device: uuid.parse()?,
                bytes: bytes.parse()?,
            };
            hop_gpu::reserve::hold(&cuda, want)?;
        }
        _ => return Err("usage: hold pattern BYTES | hold reserve UUID BYTES".into()),
    }
    Ok(())
}
