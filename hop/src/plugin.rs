//! `hop plugin`: the one line of plugstack.conf.
//!
//! Each new slurmstepd reads plugstack.conf anew, so a change counts from the next step on. Running steps keep their
//! loaded plugin. If the line is removed while leases live, these leases end in order; only new leases are not handed
//! over (the agent then reports them as failed).

use crate::context::Context;
use crate::failure::Failure;
use crate::files;
use clap::Subcommand;
use std::fs;
use std::io::{self, Write};
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::path::{Path, PathBuf};

const EXAMPLES: &str = "\
Examples:
  hop plugin install /etc/slurm/plugstack.conf --plugin /opt/gresshopper/lib/gresshopper.so
  hop plugin status /etc/slurm/plugstack.conf
  hop plugin remove /etc/slurm/plugstack.conf

Steps follow the file from the next one on, and running leases end in order. A slurmd reads it once for its epilogs:
restart slurmd on the GPU nodes afterwards; running jobs don't notice.";

/// The most bytes of plugstack.conf and of the plugin.
const MOST: u64 = 1 << 28;

/// What our line's plugin is called.
const FILE_NAME: &str = "gresshopper.so";

/// Put the SPANK plugin into plugstack.conf, or take it out.
#[derive(Debug, clap::Args)]
#[command(after_help = EXAMPLES)]
pub(crate) struct Args {
    #[command(subcommand)]
    action: Action,
}

#[derive(Debug, Subcommand)]
enum Action {
    /// Add the line, or change it to this plugin and these arguments
    Install {
        /// plugstack.conf
        plugstack: PathBuf,
        /// gresshopper.so, the same path on every node
        #[arg(long, value_name = "FILE")]
        plugin: PathBuf,
        /// Arguments of the plugin, as name=value
        #[arg(value_name = "ARGUMENT", last = true)]
        arguments: Vec<String>,
    },
    /// Take the line out
    Remove {
        /// plugstack.conf
        plugstack: PathBuf,
    },
    /// Show the Slurm series of a gresshopper.so: 22.05
    Series {
        /// gresshopper.so
        plugin: PathBuf,
    },
    /// Say whether the line is in: status 0 if so, 1 if not
    Status {
        /// plugstack.conf
        plugstack: PathBuf,
    },
}

pub(crate) fn run(args: &Args, context: &mut Context<'_>) -> Result<(), Failure> {
    match &args.action {
        Action::Install {
            plugstack,
            plugin,
            arguments,
        } => install(plugstack, plugin, arguments, context),
        Action::Remove { plugstack } => remove(plugstack, context),
        Action::Series { plugin } => series(plugin, context),
        Action::Status { plugstack } => status(plugstack, context),
    }
}

fn install(
    plugstack: &Path,
    plugin: &Path,
    arguments: &[String],
    context: &mut Context<'_>,
) -> Result<(), Failure> {
    check_plugin(plugin, arguments)?;
    let old = read(plugstack)?.unwrap_or_default();
    let line = plugin_line(plugin, arguments);
    let new = with_line(&old, &line);
    if new == old {
        writeln!(
            context.err,
            "hop: {} has the line already; nothing is changed.",
            plugstack.display()
        )?;
        return Ok(());
    }
    replace(plugstack, &new)?;
    writeln!(context.err, "hop: {} now has: {line}", plugstack.display())?;
    writeln!(
        context.err,
        "hop: it holds from the next step on, on the nodes that read this file."
    )?;
    Ok(())
}

fn remove(plugstack: &Path, context: &mut Context<'_>) -> Result<(), Failure> {
    let Some(old) = read(plugstack)?.filter(|old| old.lines().any(is_ours)) else {
        writeln!(
            context.err,
            "hop: {} does not have the plugin; nothing is changed.",
            plugstack.display()
        )?;
        return Ok(());
    };
    replace(plugstack, &without_line(&old))?;
    writeln!(context.err, "hop: the plugin is out of {}.", plugstack.display())?;
    writeln!(
        context.err,
        "hop: leases that run now end in order; new ones are refused until it is back."
    )?;
    Ok(())
}

fn status(plugstack: &Path, context: &mut Context<'_>) -> Result<(), Failure> {
    let text = read(plugstack)?.unwrap_or_default();
    match text.lines().find(|line| is_ours(line)) {
        Some(line) => Ok(writeln!(context.out, "{}", line.trim())?),
        None => Err(Failure::Failed(format!(
            "the plugin is not in {}",
            plugstack.display()
        ))),
    }
}

fn series(plugin: &Path, context: &mut Context<'_>) -> Result<(), Failure> {
    let bytes = files::read(plugin, MOST).map_err(|error| file_failure("read", plugin, &error))?;
    let version = crate::doctor::plugin_file::version(&bytes)
        .map_err(|why| Failure::Failed(format!("{}: {why}", plugin.display())))?;
    let (major, minor) = version.series();
    Ok(writeln!(context.out, "{major}.{minor:02}")?)
}

fn check_plugin(plugin: &Path, arguments: &[String]) -> Result<(), Failure> {
    let text = plugin.display().to_string();
    if plugin.file_name().is_none_or(|name| name != FILE_NAME) || !plugin.is_absolute() {
        return Err(Failure::Usage(format!(
            "{text} must be an absolute path that ends with {FILE_NAME}"
        )));
    }
    let bad = |word: &str| {
        word.is_empty() || word.contains(|c: char| c.is_whitespace() || c.is_control() || c == '#')
    };
    if let Some(word) = std::iter::once(&text).chain(arguments).find(|word| bad(word)) {
        return Err(Failure::Usage(format!(
            "{word:?} can't stand in plugstack.conf: it has a space, a # or nothing"
        )));
    }
    let about = fs::metadata(plugin).map_err(|error| file_failure("look at", plugin, &error))?;
    let writable_by_others = about.permissions().mode() & 0o022 != 0;
    if about.uid() != 0 || writable_by_others {
        return Err(Failure::Failed(format!(
            "{text} must belong to root and be writable by nobody else: slurmstepd loads it as root"
        )));
    }
    Ok(())
}

/// `optional`: its absence, panic or wrong version leaves every job's launch untouched.
fn plugin_line(plugin: &Path, arguments: &[String]) -> String {
    let mut line = format!("optional {}", plugin.display());
    for argument in arguments {
        line.push(' ');
        line.push_str(argument);
    }
    line
}

pub(crate) fn is_ours(line: &str) -> bool {
    let mut words = line.split_whitespace();
    let kind = words
        .next()
        .is_some_and(|word| matches!(word, "optional" | "required"));
    let file = words.next().and_then(|path| Path::new(path).file_name());
    kind && file.is_some_and(|name| name == FILE_NAME)
}

/// The text with `line` in the place of ours, or at the end.
fn with_line(old: &str, line: &str) -> String {
    let mut placed = false;
    let mut new: Vec<&str> = Vec::new();
    for current in old.lines() {
        if !is_ours(current) {
            new.push(current);
        } else if !placed {
            placed = true;
            new.push(line);
        }
    }
    if !placed {
        new.push(line);
    }
    new.join("\n") + "\n"
}

fn without_line(old: &str) -> String {
    old.lines()
        .filter(|line| !is_ours(line))
        .map(|line| format!("{line}\n"))
        .collect()
}

fn read(path: &Path) -> Result<Option<String>, Failure> {
    match files::read_text(path, MOST) {
        Ok(text) => Ok(Some(text)),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
        Err(error) => Err(file_failure("read", path, &error)),
    }
}

/// Writes under another name, then renames: a slurmstepd that starts meanwhile reads the old file or the new one,
/// whole.
fn replace(path: &Path, text: &str) -> Result<(), Failure> {
    let path = files::behind_links(path).map_err(|error| file_failure("change", path, &error))?;
    files::may_be_replaced(&path).map_err(|error| file_failure("change", &path, &error))?;
    let failure = |error: io::Error| file_failure("change", &path, &error);
    let folder = path
        .parent()
        .filter(|folder| !folder.as_os_str().is_empty())
        .unwrap_or_else(|| Path::new("."));
    let (mode, owner) = match fs::metadata(&path) {
        Ok(about) => (
            about.permissions().mode() & 0o7777,
            Some((about.uid(), about.gid())),
        ),
        Err(_) => (0o644, None),
    };
    let mut file = tempfile::NamedTempFile::new_in(folder).map_err(failure)?;
    file.write_all(text.as_bytes()).map_err(failure)?;
    file.as_file()
        .set_permissions(fs::Permissions::from_mode(mode))
        .map_err(failure)?;
    if let Some((uid, gid)) = owner {
        std::os::unix::fs::fchown(file.as_file(), Some(uid), Some(gid)).map_err(failure)?;
    }
    file.as_file().sync_all().map_err(failure)?;
    file.persist(&path).map_err(|error| failure(error.error))?;
    Ok(())
}

fn file_failure(what: &str, path: &Path, error: &io::Error) -> Failure {
    let hint = match error.kind() {
        io::ErrorKind::PermissionDenied => ": only root may do that",
        _ => "",
    };
    Failure::Failed(format!("could not {what} {}: {error}{hint}", path.display()))
}

#[cfg(test)]
mod tests {
    use super::*;

    const LINE: &str = "optional /opt/gresshopper/lib/gresshopper.so service_user=gresshopper";

    #[test]
    fn other_lines_stay_as_they_are() {
        let old = "# site\nrequired /usr/lib/x11.so\n";
        let new = with_line(old, LINE);
        assert_eq!(new, format!("{old}{LINE}\n"));
        assert_eq!(with_line(&new, LINE), new);
        assert_eq!(
            with_line(&new, "optional /new/gresshopper.so"),
            format!("{old}optional /new/gresshopper.so\n")
        );
        assert_eq!(without_line(&new), old);
        assert_eq!(with_line("", LINE), format!("{LINE}\n"));
    }

    #[test]
    fn comments_and_other_plugins_are_not_ours() {
        assert!(is_ours(LINE) && is_ours("  required  /a/gresshopper.so"));
        assert!(
            !is_ours("# optional /a/gresshopper.so")
                && !is_ours("optional /a/not-gresshopper.so")
                && !is_ours("include gresshopper.so")
        );
    }

    #[test]
    fn the_file_is_replaced_whole_with_its_mode() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("plugstack.conf");
        fs::write(&path, "a\n").unwrap();
        fs::set_permissions(&path, fs::Permissions::from_mode(0o640)).unwrap();
        replace(&path, "b\n").unwrap();
        assert_eq!(fs::read_to_string(&path).unwrap(), "b\n");
        assert_eq!(fs::metadata(&path).unwrap().permissions().mode() & 0o777, 0o640);
        assert_eq!(fs::read_dir(folder.path()).unwrap().count(), 1);
    }

    #[test]
    fn links_stay_links_and_what_is_no_file_stays() {
        let folder = tempfile::tempdir().unwrap();
        let (link, socket) = (folder.path().join("link"), folder.path().join("socket"));
        std::os::unix::fs::symlink("new.conf", &link).unwrap();
        replace(&link, "a\n").unwrap();
        assert!(link.is_symlink());
        assert_eq!(fs::read_to_string(folder.path().join("new.conf")).unwrap(), "a\n");
        let _listener = std::os::unix::net::UnixListener::bind(&socket).unwrap();
        let told = replace(&socket, "a\n").map_err(|e| e.to_string()).unwrap_err();
        assert!(told.contains("it is a socket"), "{told}");
        assert!(!socket.is_file());
    }
}
