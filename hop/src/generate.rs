//! `hop generate`: man pages and completions from the commands' own descriptions, for who makes packages.

use crate::context::Context;
use crate::failure::Failure;
use clap::CommandFactory as _;
use clap_complete::Shell;
use std::fs;
use std::path::{Path, PathBuf};

/// Write man pages and completions into two folders
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// For hop.1, hop-acct.1, ...
    man: PathBuf,
    /// For hop.bash, _hop, hop.fish
    completions: PathBuf,
}

pub(crate) fn run(args: &Args, context: &mut Context<'_>) -> Result<(), Failure> {
    let failure = |error: &std::io::Error| Failure::Failed(format!("can't write pages: {error}"));
    let pages = man_pages(&args.man).map_err(|error| failure(&error))?;
    let mut shells = 0;
    fs::create_dir_all(&args.completions).map_err(|error| failure(&error))?;
    for shell in [Shell::Bash, Shell::Zsh, Shell::Fish] {
        clap_complete::generate_to(shell, &mut crate::Cli::command(), "hop", &args.completions)
            .map_err(|error| failure(&error))?;
        shells += 1;
    }
    Ok(writeln!(
        context.err,
        "hop: {pages} man pages, completions for {shells} shells"
    )?)
}

/// Writes a page for `hop`, for each command and for each subcommand.
fn man_pages(folder: &Path) -> std::io::Result<usize> {
    fs::create_dir_all(folder)?;
    clap_mangen::generate_to(crate::Cli::command(), folder)?;
    Ok(fs::read_dir(folder)?.count())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_command_has_its_page() {
        let folder = tempfile::tempdir().unwrap();
        let pages = man_pages(folder.path()).unwrap();
        assert!(pages > 10);
        let text = fs::read_to_string(folder.path().join("hop-doctor.1")).unwrap();
        assert!(text.contains("installation"), "{text}");
    }
}
