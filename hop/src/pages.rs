//! `hop` understands each `hop` command shown by a page or proposed by a sentence of ours.

use crate::Cli;
use crate::transcripts;
use clap::{Command, CommandFactory, Parser};
use std::fs;
use std::path::{Path, PathBuf};

/// A command as a reader sees it.
#[derive(Debug)]
struct Shown {
    place: String,
    words: Vec<String>,
    /// To be typed as it stands. Otherwise it may leave arguments out.
    whole: bool,
}

#[test]
fn commands_on_pages_and_in_sentences_are_understood() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("..");
    let mut shown = Vec::new();
    for file in files(&root, &["docs", "README.md"], &["md"]) {
        shown.extend(of_page(&file, &fs::read_to_string(&file).unwrap()));
    }
    let folders = [
        "hop",
        "kernel",
        "scheduler",
        "slurm-plugin",
        "jupyterhub-spawner",
        "words",
    ];
    let mut sources = files(&root, &folders, &["rs", "py", "ts", "tsx"]);
    // This one has wrong ones on purpose.
    sources.retain(|file| !file.ends_with("src/pages.rs"));
    for file in sources {
        shown.extend(of_source(&file, &fs::read_to_string(&file).unwrap()));
    }
    assert!(shown.len() > 200, "only {} commands were found", shown.len());
    let wrong: Vec<String> = shown
        .iter()
        .filter_map(|s| Some(format!("{}: hop {}: {}", s.place, s.words.join(" "), fault(s)?)))
        .collect();
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

#[test]
fn a_wrong_command_is_seen() {
    let page = "Say `hop acct --cells`, `hop nothing`, `hop info -o node,reason:80`, `hop acct -X`.\n\
                ```sh\nhop kernelspec --gpus 1 | head\n$ hop queue\nhop kernelspec install # ok: --no\n```\n";
    let wrong: Vec<bool> = of_page(Path::new("p"), page)
        .iter()
        .map(|s| fault(s).is_some())
        .collect();
    assert_eq!(wrong, [true, true, true, false, true, false, false]);
}

fn files(root: &Path, places: &[&str], kinds: &[&str]) -> Vec<PathBuf> {
    let mut found = Vec::new();
    let mut left: Vec<PathBuf> = places.iter().map(|p| root.join(p)).collect();
    while let Some(path) = left.pop() {
        if path.is_dir() {
            let skipped = ["target", "node_modules", "simulation", "lib"];
            let name = path.file_name().unwrap_or_default();
            if !skipped.iter().any(|s| name == *s) {
                left.extend(fs::read_dir(&path).unwrap().flatten().map(|e| e.path()));
            }
        } else if path.extension().is_some_and(|e| kinds.iter().any(|k| e == *k)) {
            found.push(path);
        }
    }
    found
}

fn of_page(file: &Path, text: &str) -> Vec<Shown> {
    let mut shown = Vec::new();
    let mut in_code = false;
    for (number, line) in (1..).zip(text.lines()) {
        let place = || format!("{}:{number}", file.display());
        if line.trim_start().starts_with("```") {
            in_code = !in_code;
        } else if in_code {
            shown.extend(typed(line).into_iter().map(|words| Shown {
                place: place(),
                words,
                whole: true,
            }));
        } else {
            shown.extend(spans(line).into_iter().map(|words| Shown {
                place: place(),
                words,
                whole: false,
            }));
        }
    }
    shown
}

fn of_source(file: &Path, text: &str) -> Vec<Shown> {
    let lines = (1..).zip(text.lines());
    lines
        .flat_map(|(number, line)| {
            spans(line).into_iter().map(move |words| Shown {
                place: format!("{}:{number}", file.display()),
                words,
                whole: false,
            })
        })
        .collect()
}

/// Commands of a line of shell: each until a pipe, a redirection or a comment.
fn typed(line: &str) -> Vec<Vec<String>> {
    let mut commands = Vec::new();
    let mut words = line.split_whitespace().peekable();
    while let Some(word) = words.next() {
        if word.starts_with('#') {
            break;
        }
        if !is_hop(word) {
            continue;
        }
        let ends = |w: &str| w.starts_with(['|', '>', '#', '&', ';', '2']) && w.len() < 3;
        let mut command = Vec::new();
        while let Some(word) = words.next_if(|w| !ends(w)) {
            command.push(word.to_owned());
        }
        commands.push(unquoted(&command));
    }
    commands
}

fn is_hop(word: &str) -> bool {
    matches!(word, "hop" | "%hop" | "!hop") || word.ends_with("/bin/hop")
}

/// Words in double quotes as one.
fn unquoted(words: &[String]) -> Vec<String> {
    let mut whole: Vec<String> = Vec::new();
    let mut open = false;
    for word in words {
        let quotes = word.matches('"').count();
        let bare = word.replace('"', "");
        match whole.last_mut().filter(|_| open) {
            Some(last) => *last = format!("{last} {bare}"),
            None => whole.push(bare),
        }
        open ^= quotes % 2 == 1;
    }
    whole
}

/// Commands between backticks.
fn spans(line: &str) -> Vec<Vec<String>> {
    let code = line.split('`').skip(1).step_by(2);
    code.filter_map(|span| {
        let mut words = span.split_whitespace();
        words.next().filter(|w| is_hop(w))?;
        Some(unquoted(&words.map(str::to_owned).collect::<Vec<_>>()))
    })
    .collect()
}

fn fault(shown: &Shown) -> Option<String> {
    if shown.words.is_empty() {
        return None;
    }
    let line = shown.words.join(" ");
    if shown.whole && !line.contains(['$', '[']) {
        let words = std::iter::once("hop").chain(shown.words.iter().map(String::as_str));
        let parsed = Cli::try_parse_from(words).err();
        let wrong = parsed.filter(|e| e.exit_code() != 0);
        if let Some(error) = wrong {
            return error.to_string().lines().next().map(str::to_owned);
        }
    }
    unknown_word(&shown.words).or_else(|| unknown_field(&shown.words))
}

/// The first unknown command or option.
fn unknown_word(words: &[String]) -> Option<String> {
    let mut cli = Cli::command();
    cli.build();
    let mut at = &cli;
    for word in words.iter().take_while(|w| *w != "--") {
        let word = word.trim_matches(|c: char| "[](),.:'".contains(c));
        if let Some(option) = word.strip_prefix('-') {
            if !knows(at, option) {
                return Some(format!("has no option {word}"));
            }
        } else if at.has_subcommands() {
            // `acct|queue`: each of them.
            let names: Vec<&str> = word.split(['|', '\\']).filter(|n| !n.is_empty()).collect();
            let found: Option<Vec<&Command>> = names.iter().map(|n| at.find_subcommand(n)).collect();
            match found.and_then(|f| f.first().copied()) {
                Some(command) => at = command,
                None if names.is_empty() || word.starts_with('{') => return None,
                None => return Some(format!("has no command {word}")),
            }
        }
    }
    None
}

fn knows(command: &Command, option: &str) -> bool {
    let option = option.split(['=', '[']).next().unwrap_or_default();
    let mut arguments = command.get_arguments();
    match option.strip_prefix('-') {
        Some(long) => arguments.any(|a| {
            let aliases = a.get_all_aliases().unwrap_or_default();
            a.get_long() == Some(long) || aliases.contains(&long)
        }),
        None => option.chars().next().is_none_or(|short| {
            arguments.any(|a| {
                let aliases = a.get_all_short_aliases().unwrap_or_default();
                a.get_short() == Some(short) || aliases.contains(&short)
            })
        }),
    }
}

/// The fault in the fields of `-o`.
fn unknown_field(words: &[String]) -> Option<String> {
    let lists = ["acct", "report", "queue", "info", "kernels"];
    let command = words.first().filter(|w| lists.contains(&w.as_str()))?;
    let fields = &words[words.iter().position(|w| w == "-o")? + 1..];
    let answer = transcripts::as_user(&format!("{command} -o {}", fields.first()?));
    answer
        .lines()
        .find(|l| l.starts_with("hop: ") && (l.contains("field") || l.contains("width")))
        .map(str::to_owned)
}
