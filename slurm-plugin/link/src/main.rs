//! The helper process that links libslurm, for `hop_slurm::link`.
//!
//! JSON lines on stdin and stdout, one answer for each question, until stdin ends. libslurm calls `exit` or `fatal()`
//! on final errors in its view (an unreadable slurm.conf, a missing plugin). A fatal error ends this process alone, and
//! the parent goes on with Slurm's commands. A build without Slurm's headers only reports so.

use hop_slurm::link::{Ask, Hello, MAX_LINE, PROTOCOL};
use hop_words::line::{self, Lines};
use std::io::{self, Write};
use std::process::ExitCode;

#[cfg(slurm)]
mod library;

#[cfg(not(slurm))]
mod library {
    //! Stands in where there were no headers: knows no Slurm and answers nothing.

    use hop_slurm::Version;
    use hop_slurm::link::{Answer, Ask};

    pub(crate) struct Library;

    pub(crate) fn versions() -> (Option<Version>, Option<(u32, u32)>) {
        (None, None)
    }

    impl Library {
        pub(crate) fn start() -> Self {
            Self
        }

        pub(crate) fn answer(&self, _ask: &Ask) -> Answer {
            Answer::Error {
                code: -1,
                message: "built without Slurm's headers".to_owned(),
            }
        }
    }
}

fn main() -> ExitCode {
    match serve() {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            let _ = writeln!(io::stderr(), "hop-slurm-link: {error}");
            ExitCode::FAILURE
        }
    }
}

fn serve() -> io::Result<()> {
    let (built, api) = library::versions();
    let hello = Hello {
        protocol: PROTOCOL,
        built,
        api,
    };
    say(&hello)?;
    // A library of another series has other structs: not a single call goes there.
    if !hello.fits() {
        return Err(io::Error::other(format!(
            "built for Slurm {built:?}, API {api:?}"
        )));
    }
    let library = library::Library::start();
    let mut lines = Lines::new(io::stdin().lock(), MAX_LINE);
    while let Some(ask) = lines.read::<Ask>()? {
        say(&library.answer(&ask))?;
    }
    Ok(())
}

fn say(value: &impl serde::Serialize) -> io::Result<()> {
    Ok(line::write(&mut io::stdout().lock(), value)?)
}
