//! Keys, region and endpoint from the AWS tools' `~/.aws/credentials` and `~/.aws/config`.

use std::collections::BTreeMap;

/// The settings of one section (`default`, `profile NAME`, or `NAME`).
pub(crate) fn section(text: &str, wanted: &[String]) -> BTreeMap<String, String> {
    let mut found = BTreeMap::new();
    let mut inside = false;
    for line in text.lines() {
        // Indented lines belong to settings with parts of their own, none of which is read here.
        if line.starts_with(['#', ';', ' ', '\t']) {
            continue;
        }
        if let Some(name) = line.trim().strip_prefix('[').and_then(|l| l.strip_suffix(']')) {
            let name = name.split_whitespace().collect::<Vec<_>>().join(" ");
            inside = wanted.contains(&name);
        } else if let Some((key, value)) = line.split_once('=').filter(|_| inside) {
            found.insert(key.trim().to_lowercase(), value.trim().to_owned());
        }
    }
    found
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_the_wanted_section_is_read() {
        let text = "# c\n[default]\naws_access_key_id = A\n[profile  work]\nregion=eu-1\ns3 =\n  region = no\n\
                    Endpoint_URL = http://x/?a=b\n[other]\nregion = no\n";
        let work = section(text, &["profile work".to_owned(), "work".to_owned()]);
        assert_eq!(work["region"], "eu-1");
        assert_eq!(work["endpoint_url"], "http://x/?a=b");
        assert_eq!(section(text, &["default".to_owned()]).len(), 1);
        assert!(section(text, &["none".to_owned()]).is_empty());
    }
}
