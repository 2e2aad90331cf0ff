//! Names in a kernel's folder of the shared store, `states/<kernel>/`.
//!
//! Each tenure writes to a folder of its own, made under a temporary name and renamed to [`folder_name`] once it
//! contains [`STATE_FILE`]. A rename onto a folder with content fails, so a tenure has a single opener and a single
//! writer. A removed folder's name could be taken again, so an opener also gives up if a higher folder exists
//! afterwards. The folder with the highest name counts ([`newest`]). No pointer file exists, so no late writer can turn
//! a pointer back.

use hop_words::id::Tenure;

/// The file of a tenure's folder with [`crate::State::at_rest`], in its serialised form.
pub const STATE_FILE: &str = "kernel";

/// A tenure's folder. Compaction begins the tenure's next part.
pub fn folder_name(tenure: Tenure, part: u32) -> String {
    format!("{tenure}.{part}")
}

/// The newest folder. Other names are ignored.
pub fn newest<'a>(names: impl IntoIterator<Item = &'a str>) -> Option<(Tenure, u32)> {
    names.into_iter().filter_map(parse).max()
}

fn parse(name: &str) -> Option<(Tenure, u32)> {
    let (tenure, part) = name.split_once('.')?;
    let parsed = (tenure.parse().ok()?, part.parse().ok()?);
    // Other spellings of the same numbers, like `+1.00`, are foreign.
    (folder_name(parsed.0, parsed.1) == name).then_some(parsed)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_newest_folder_has_the_highest_numbers() {
        let names = [
            "9.0", "10.0", "10.2", ".new-x", "11", "12.x", "+13.0", "14.0 ", "kernel",
        ];
        assert_eq!(newest(names), Some((Tenure(10), 2)));
        assert_eq!(newest([]), None);
    }
}
