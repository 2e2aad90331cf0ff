//! Device files of a node's GRES by gres.conf, for the administrator's information. The devices really lent are found
//! by a try in each step, not here.
//!
//! Reading is pure: the text comes from a closure, and `Include` works in tests too. Of gres.conf only the lines with a
//! `File` matter, and `AutoDetect`.

use hop_slurm::hostlist::{self, HostListError};
use std::path::{Path, PathBuf};

/// The device files of one node, in gres.conf's order.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub(crate) struct NodeGres {
    /// Files of `Name=gpu`.
    pub(crate) gpus: Vec<PathBuf>,
    /// `AutoDetect` is on for the node: what no line names is found by Slurm itself.
    pub(crate) autodetect: bool,
    /// A GPU has several files (`MultipleFiles`), as instances of MIG have.
    pub(crate) several_files: bool,
}

/// Why gres.conf could not be read.
#[derive(Debug, thiserror::Error)]
pub(crate) enum GresError {
    #[error("{} can't be read", .path.display())]
    Read {
        path: PathBuf,
        #[source]
        source: std::io::Error,
    },
    #[error("{} holds an expression that is no hostlist", .path.display())]
    Hostlist {
        path: PathBuf,
        #[source]
        source: HostListError,
    },
    #[error("{} includes files too deeply", .path.display())]
    TooDeep { path: PathBuf },
}

/// Slurm's own bound on includes is not documented; nobody nests deeper.
const MAX_DEPTH: u8 = 8;

/// Reads `path` and its includes, and keeps the lines about `node`.
///
/// # Errors
/// A file beyond the reach of `read`, or an expression refused by Slurm as well.
pub(crate) fn read_gres_conf(
    path: &Path,
    node: &str,
    read: &dyn Fn(&Path) -> std::io::Result<String>,
) -> Result<NodeGres, GresError> {
    let mut gres = NodeGres::default();
    read_into(path, node, read, MAX_DEPTH, &mut gres)?;
    Ok(gres)
}

fn read_into(
    path: &Path,
    node: &str,
    read: &dyn Fn(&Path) -> std::io::Result<String>,
    depth: u8,
    gres: &mut NodeGres,
) -> Result<(), GresError> {
    if depth == 0 {
        return Err(GresError::TooDeep {
            path: path.to_owned(),
        });
    }
    let text = read(path).map_err(|source| GresError::Read {
        path: path.to_owned(),
        source,
    })?;
    for line in logical_lines(&text) {
        if let Some(include) = included(&line, path) {
            read_into(&include, node, read, depth - 1, gres)?;
        } else {
            take_line(&line, node, gres).map_err(|source| GresError::Hostlist {
                path: path.to_owned(),
                source,
            })?;
        }
    }
    Ok(())
}

/// Lines without comments, joined where one ends in a backslash.
fn logical_lines(text: &str) -> Vec<String> {
    let mut lines = Vec::new();
    let mut current = String::new();
    for line in text.lines() {
        let line = line.split('#').next().unwrap_or_default().trim();
        if let Some(part) = line.strip_suffix('\\') {
            current.push_str(part);
            current.push(' ');
        } else {
            current.push_str(line);
            lines.push(std::mem::take(&mut current));
        }
    }
    lines.push(current);
    lines.retain(|l| !l.trim().is_empty());
    lines
}

/// The file that an `Include` line names, relative to the including file.
fn included(line: &str, from: &Path) -> Option<PathBuf> {
    let (word, file) = line.split_once(char::is_whitespace)?;
    if !word.eq_ignore_ascii_case("include") {
        return None;
    }
    Some(from.parent().unwrap_or_else(|| Path::new("/")).join(file.trim()))
}

fn take_line(line: &str, node: &str, gres: &mut NodeGres) -> Result<(), HostListError> {
    // Slurm allows blanks round the sign.
    let parts: Vec<&str> = line.split('=').map(str::trim).collect();
    let line = parts.join("=");
    let value = |key: &str| {
        line.split_whitespace()
            .filter_map(|pair| pair.split_once('='))
            .find(|(k, _)| k.eq_ignore_ascii_case(key))
            .map(|(_, v)| v.trim_matches('"'))
    };
    if let Some(nodes) = value("NodeName")
        && !hostlist::expand(nodes)?.iter().any(|n| n == node)
    {
        return Ok(());
    }
    if let Some(detect) = value("AutoDetect") {
        gres.autodetect = !detect.eq_ignore_ascii_case("off");
    }
    let Some(files) = value("File").or_else(|| value("MultipleFiles")) else {
        return Ok(());
    };
    let files = hostlist::expand(files)?.into_iter().map(PathBuf::from);
    if value("Name").is_some_and(|name| name.eq_ignore_ascii_case("gpu")) {
        gres.several_files |= value("MultipleFiles").is_some();
        gres.gpus.extend(files);
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io;

    const MAIN: &str = "\
AutoDetect=off   # all by hand
NodeName=n1 Name=gpu Type=a100 File=/dev/fake1[0-1]
nodename=n[2-3] name=GPU \\
    file=/dev/fake20,/dev/fake21
NodeName=n5 Name=gpu Type=1g.5gb MultipleFiles=/dev/nvidia0,/dev/nvidia-caps/nvidia-cap21
NodeName=n1 Name = nic File =	/dev/nic0
Include more.conf
Name=bandwidth Count=4G
";

    fn read(path: &Path) -> io::Result<String> {
        match path.to_str() {
            Some("/etc/slurm/gres.conf") => Ok(MAIN.to_owned()),
            Some("/etc/slurm/more.conf") => Ok("Name=gpu File=/dev/common\n".to_owned()),
            Some("/etc/slurm/loop.conf") => Ok("include loop.conf".to_owned()),
            _ => Err(io::ErrorKind::NotFound.into()),
        }
    }

    fn of(node: &str) -> NodeGres {
        read_gres_conf(Path::new("/etc/slurm/gres.conf"), node, &read).unwrap()
    }

    fn paths(names: &[&str]) -> Vec<PathBuf> {
        names.iter().map(PathBuf::from).collect()
    }

    #[test]
    fn a_node_sees_its_own_lines_and_the_common_ones_in_order() {
        assert_eq!(
            of("n1"),
            NodeGres {
                gpus: paths(&["/dev/fake10", "/dev/fake11", "/dev/common"]),
                autodetect: false,
                several_files: false,
            }
        );
        assert!(of("n5").several_files && !of("n3").several_files);
        assert_eq!(
            of("n3").gpus,
            paths(&["/dev/fake20", "/dev/fake21", "/dev/common"])
        );
        assert_eq!(of("n9").gpus, paths(&["/dev/common"]));
    }

    #[test]
    fn a_loop_and_a_missing_file_are_errors() {
        let result = read_gres_conf(Path::new("/etc/slurm/loop.conf"), "n1", &read);
        assert!(matches!(result, Err(GresError::TooDeep { .. })));
        let result = read_gres_conf(Path::new("/nowhere"), "n1", &read);
        assert!(matches!(result, Err(GresError::Read { .. })));
    }
}
