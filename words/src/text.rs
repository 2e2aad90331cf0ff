//! Text from users, on its way to somebody else's terminal, log or page.

/// Whether a terminal or a page would act on the character: control characters, and those that turn the direction of the
/// text around them, or show nothing.
pub fn acts(c: char) -> bool {
    c.is_control()
        || matches!(
            c,
            '\u{ad}' | '\u{61c}' | '\u{180e}' | '\u{200b}' | '\u{200e}' | '\u{200f}' | '\u{feff}'
        )
        || matches!(c, '\u{2028}'..='\u{202e}' | '\u{2060}'..='\u{206f}' | '\u{fff9}'..='\u{fffb}')
        || matches!(c, '\u{e0000}'..='\u{e007f}')
}

/// The text on one line, without characters that act.
pub fn plain(text: &str) -> String {
    let shown = |c: char| match c {
        '\n' | '\t' => ' ',
        c if acts(c) => '?',
        c => c,
    };
    text.chars().map(shown).collect()
}

/// The most characters of a notebook's name.
const NAME: usize = 200;

/// A notebook's name as `hopd` keeps it and tables show it. Names given by users are compared in this form.
pub fn name(text: &str) -> String {
    plain(text).chars().take(NAME).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_is_one_line_of_200_characters() {
        assert_eq!(name("new\nline \u{200b}.ipynb"), "new line ?.ipynb");
        let long = name(&"名".repeat(300));
        assert_eq!(long.chars().count(), 200);
        assert_eq!(name(&long), long);
    }

    #[test]
    fn nothing_is_left_that_acts_on_a_terminal() {
        assert_eq!(plain("a\u{1b}[31mb\nc\td"), "a?[31mb c d");
        // An escape in one character, a carriage return, text that runs backwards, an invisible tag.
        assert_eq!(
            plain("\u{9b}31m\r\u{202e}txt\u{2066}\u{e0041}\u{7f}"),
            "?31m??txt???"
        );
        assert_eq!(
            plain("évil 日本 👩\u{200d}🔬 نمی\u{200c}خواهم"),
            "évil 日本 👩\u{200d}🔬 نمی\u{200c}خواهم"
        );
    }
}
