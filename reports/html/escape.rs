//! Text from outside, made harmless before it stands in a page.

use std::fmt;

/// Prints a text so that it is a text in an element and in a quoted attribute alike.
pub(super) struct Escaped<T>(pub(super) T);

impl<T: fmt::Display> fmt::Display for Escaped<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Write::write_fmt(&mut Escaping(f), format_args!("{}", self.0))
    }
}

struct Escaping<'a, 'b>(&'a mut fmt::Formatter<'b>);

impl fmt::Write for Escaping<'_, '_> {
    fn write_str(&mut self, text: &str) -> fmt::Result {
        for c in text.chars() {
            match c {
                '&' => self.0.write_str("&amp;")?,
                '<' => self.0.write_str("&lt;")?,
                '>' => self.0.write_str("&gt;")?,
                '"' => self.0.write_str("&quot;")?,
                '\'' => self.0.write_str("&#39;")?,
                '\n' | '\t' => self.0.write_char(c)?,
                // Control characters are not allowed in a page and move the cursor where a page is printed.
                c if c.is_control() => self.0.write_char('\u{fffd}')?,
                c => self.0.write_char(c)?,
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::Escaped;

    #[test]
    fn no_character_of_a_text_is_markup() {
        let hostile = "<script>alert('x' & \"y\")</script>\u{1b}[31m";
        let safe = "&lt;script&gt;alert(&#39;x&#39; &amp; &quot;y&quot;)&lt;/script&gt;\u{fffd}[31m";
        assert_eq!(Escaped(hostile).to_string(), safe);
    }
}
