//! `docs/configuration.md` is true: its examples parse, every key has a row with its default, and no row is of a key
//! that doesn't exist.

#![allow(clippy::unwrap_used, reason = "a test")]

use hop_api::config::{Config, Quantum};
use hop_words::net::PortRange;
use hop_words::replica::Replicas;
use hop_words::time::Span;
use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;

const POOL: &str =
    "[pool.NAME]\npartition='p'\ngpus_per_pilot=1\ncpus_per_pilot=1\nmin_pilots=0\nmax_pilots=1\n";
const TABLES: &str =
    "[pool.NAME.scale]\n[pool.NAME.migrate]\n[[pool.NAME.burst]]\npartition='b'\nmax_pilots=1\n";

fn page(name: &str) -> String {
    let path = Path::new(env!("CARGO_MANIFEST_DIR"))
        .join("../../docs")
        .join(name);
    std::fs::read_to_string(path).unwrap()
}

/// The text of each fenced block of TOML.
fn examples(page: &str) -> Vec<String> {
    let blocks = page.split("```toml\n").skip(1);
    blocks
        .map(|b| b.split("```").next().unwrap().to_owned())
        .collect()
}

/// Key and default of each row.
fn rows(page: &str) -> BTreeMap<String, String> {
    let rows = page.lines().filter_map(|line| line.strip_prefix("| `"));
    rows.map(|row| {
        let (key, rest) = row.split_once("` | ").unwrap();
        let (default, meaning) = rest.split_once(" | ").unwrap();
        assert!(meaning.len() > 5, "{key} has no meaning");
        (key.to_owned(), default.trim_matches('`').to_owned())
    })
    .collect()
}

/// Every key that a configuration has, with its value in TOML.
fn keys(config: &Config) -> BTreeMap<String, String> {
    let mut found = BTreeMap::new();
    let value = toml::Value::try_from(config).unwrap();
    flatten("", &value, &mut found);
    found
}

fn flatten(path: &str, value: &toml::Value, found: &mut BTreeMap<String, String>) {
    match value {
        toml::Value::Table(table) => {
            for (key, value) in table {
                let path = if path.is_empty() {
                    key.clone()
                } else {
                    format!("{path}.{key}")
                };
                flatten(&path, value, found);
            }
        }
        toml::Value::Array(items) if items.iter().any(toml::Value::is_table) => {
            items.iter().for_each(|item| flatten(path, item, found));
        }
        value => drop(found.insert(path.to_owned(), value.to_string())),
    }
}

fn parse(text: &str) -> Config {
    Config::parse(text, Path::new("example")).unwrap()
}

#[test]
fn every_example_parses() {
    for name in ["configuration.md", "wiring.md"] {
        let examples = examples(&page(name));
        assert!(!examples.is_empty(), "{name}");
        examples.iter().for_each(|text| drop(parse(text)));
    }
}

#[test]
fn every_key_is_documented_and_every_documented_key_exists() {
    let mut all = parse(&format!("{POOL}{TABLES}"));
    all.munge_socket = Some("/x".into());
    all.jupyter_python = Some("/x".into());
    all.port_range = Some(PortRange(1024, 1025));
    all.jupyterhub_url = Some("https://x".into());
    (all.seat.most_mem_mib, all.seat.most_cpus) = (Some(4096), Some(4));
    all.seat.store = Some("/scratch/{user}/x".into());
    all.seat.log_dir = Some("/x".into());
    let pool = all.pool.get_mut(&"NAME".into()).unwrap();
    (pool.account, pool.gpu_type) = (Some("x".into()), Some("x".into()));
    (pool.linger_ms, pool.replicas) = (Some(1), Some(Replicas::One));
    pool.quantum = Some(Quantum {
        interactive: Some(Span(1)),
        deadline: Some(Span(1)),
        batch: Some(Span(1)),
        ..Quantum::default()
    });
    let known: BTreeSet<String> = keys(&all).into_keys().collect();
    let documented: BTreeSet<String> = rows(&page("configuration.md")).into_keys().collect();
    let missing: Vec<_> = known.difference(&documented).collect();
    assert!(missing.is_empty(), "not in docs/configuration.md: {missing:?}");
    let stale: Vec<_> = documented.difference(&known).collect();
    assert!(
        stale.is_empty(),
        "docs/configuration.md has keys that don't exist: {stale:?}"
    );
}

#[test]
fn the_documented_defaults_are_the_codes() {
    let mut config = parse(&format!("{POOL}{TABLES}"));
    // A table of which a key is needed, but none by itself.
    config.pool.get_mut(&"NAME".into()).unwrap().quantum = Some(Quantum::default());
    let defaults = keys(&config);
    for (key, said) in rows(&page("configuration.md")) {
        match said.as_str() {
            "needed" => {
                let name = key.rsplit('.').next().unwrap();
                let without: String = format!("{POOL}{TABLES}")
                    .lines()
                    .filter(|l| !l.starts_with(&format!("{name}=")))
                    .map(|l| format!("{l}\n"))
                    .collect();
                assert!(Config::parse(&without, Path::new("x")).is_err(), "{key}");
            }
            "-" => assert!(!defaults.contains_key(&key), "{key}"),
            said => assert_eq!(defaults[&key], said, "{key}"),
        }
    }
}
