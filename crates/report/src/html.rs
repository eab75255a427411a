//! The shell of a page: one file, no network. The page forbids itself every load, so that a mistake would show as a
//! missing picture and never as a request.

/// The style sheet of all pages.
const CSS: &str = include_str!("assets/page.css");
/// Reading values under the pointer, and copying commands.
const SCRIPT: &str = include_str!("assets/page.js");

/// Text as HTML text or attribute value.
#[must_use]
pub fn escape(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    for c in text.chars() {
        match c {
            '&' => out.push_str("&amp;"),
            '<' => out.push_str("&lt;"),
            '>' => out.push_str("&gt;"),
            '"' => out.push_str("&quot;"),
            '\'' => out.push_str("&#39;"),
            // Control characters have no meaning in HTML; a line end keeps words apart.
            c if c.is_control() && c != '\n' && c != '\t' => out.push('\u{fffd}'),
            c => out.push(c),
        }
    }
    out
}

/// A whole page around its body.
#[must_use]
pub fn page(title: &str, body: &str) -> String {
    format!(
        "<!doctype html>\n<html lang=\"en\">\n<head>\n<meta charset=\"utf-8\">\n\
         <meta name=\"viewport\" content=\"width=device-width, initial-scale=1\">\n\
         <meta name=\"color-scheme\" content=\"light dark\">\n\
         <meta http-equiv=\"Content-Security-Policy\" content=\"default-src 'none'; style-src 'unsafe-inline'; \
         script-src 'unsafe-inline'\">\n\
         <title>{}</title>\n<style>\n{CSS}</style>\n</head>\n<body>\n<main>\n{body}</main>\n\
         <script>\n{SCRIPT}</script>\n</body>\n</html>\n",
        escape(title)
    )
}

/// A section with its heading; nothing when it has no body.
#[must_use]
pub fn section(heading: &str, note: &str, body: &str) -> String {
    if body.is_empty() {
        return String::new();
    }
    let note =
        if note.is_empty() { String::new() } else { format!("<p class=\"note\">{}</p>\n", escape(note)) };
    format!("<section>\n<h2>{}</h2>\n{note}{body}</section>\n", escape(heading))
}

/// One cell of a table.
#[derive(Clone, Debug)]
pub enum Cell {
    /// Words.
    Text(String),
    /// A figure, aligned to the right.
    Number(String),
    /// HTML made here.
    Raw(String),
}

impl Cell {
    /// Words.
    #[must_use]
    pub fn text(text: impl Into<String>) -> Self {
        Self::Text(text.into())
    }

    /// A figure.
    #[must_use]
    pub fn number(text: impl Into<String>) -> Self {
        Self::Number(text.into())
    }

    fn html(&self) -> String {
        match self {
            Self::Text(text) => format!("<td>{}</td>", escape(text)),
            Self::Number(text) => format!("<td class=\"n\">{}</td>", escape(text)),
            Self::Raw(html) => format!("<td>{html}</td>"),
        }
    }
}

/// A table that scrolls sideways on a phone. Headings of figure columns begin with `#`, which is not
/// printed; without headings there is no head.
#[must_use]
pub fn table(headings: &[&str], rows: &[Vec<Cell>]) -> String {
    if rows.is_empty() {
        return String::new();
    }
    let heading = |text: &&str| match text.strip_prefix('#') {
        Some(text) => format!("<th class=\"n\">{}</th>", escape(text)),
        None => format!("<th>{}</th>", escape(text)),
    };
    let head: String = headings.iter().map(heading).collect();
    let head = if head.is_empty() { head } else { format!("<thead><tr>{head}</tr></thead>\n") };
    let body: String = rows
        .iter()
        .map(|row| format!("<tr>{}</tr>\n", row.iter().map(Cell::html).collect::<String>()))
        .collect();
    format!("<div class=\"wide\"><table>\n{head}<tbody>\n{body}</tbody></table></div>\n")
}

/// A command that can be copied with one press.
#[must_use]
pub fn command(text: &str) -> String {
    format!("<code class=\"command\" tabindex=\"0\" title=\"Press to copy\">{}</code>", escape(text))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nothing_foreign_becomes_markup() {
        assert_eq!(escape("<b a=\"1\" c='2'>&\u{0}"), "&lt;b a=&quot;1&quot; c=&#39;2&#39;&gt;&amp;\u{fffd}");
        let html = table(&["a", "#b"], &[vec![Cell::text("<i>"), Cell::number("1")]]);
        assert!(html.contains("&lt;i&gt;") && html.contains("<th class=\"n\">b</th>"));
        assert_eq!(table(&["a"], &[]), "");
    }

    #[test]
    fn a_page_loads_nothing() {
        let page = page("x", "");
        assert!(page.contains("default-src 'none'"));
        for load in ["http://", "https://", "url(", "@import", "src=", "fetch("] {
            assert!(!page.contains(load), "{load}");
        }
    }
}
