//! JSON read in place, without a tree: one pass, and no more memory than the reader's own values take.

use crate::error::{Error, Result};

/// How deep arrays and objects may nest.
const DEPTH: usize = 64;

/// A place in a JSON text.
pub(crate) struct Reader<'a> {
    file: &'a str,
    text: &'a str,
    at: usize,
}

impl<'a> Reader<'a> {
    /// `file` is named in errors.
    pub(crate) fn new(file: &'a str, bytes: &'a [u8]) -> Result<Reader<'a>> {
        let text = std::str::from_utf8(bytes).map_err(|_| Error::file(file, "is no JSON: not UTF-8"))?;
        Ok(Reader { file, text, at: 0 })
    }

    pub(crate) fn fail(&self, expected: &str) -> Error {
        Error::file(self.file, format!("expected {expected} at byte {} of its JSON", self.at))
    }

    /// The next byte that is no white space, 0 at the end.
    fn peek(&mut self) -> u8 {
        let bytes = self.text.as_bytes();
        while matches!(bytes.get(self.at), Some(b' ' | b'\t' | b'\n' | b'\r')) {
            self.at += 1;
        }
        bytes.get(self.at).copied().unwrap_or(0)
    }

    fn take(&mut self, byte: u8) -> bool {
        let found = self.peek() == byte;
        self.at += usize::from(found);
        found
    }

    fn word(&mut self, word: &str) -> bool {
        self.peek();
        let found = self.text[self.at..].starts_with(word);
        self.at += if found { word.len() } else { 0 };
        found
    }

    /// Whether a `null` was here, which is then behind.
    pub(crate) fn null(&mut self) -> bool {
        self.word("null")
    }

    pub(crate) fn is_string(&mut self) -> bool {
        self.peek() == b'"'
    }

    pub(crate) fn is_array(&mut self) -> bool {
        self.peek() == b'['
    }

    pub(crate) fn is_boolean(&mut self) -> bool {
        matches!(self.peek(), b't' | b'f')
    }

    /// Calls `each` with every key, the reader standing at its value, which `each` must read.
    pub(crate) fn object(&mut self, each: &mut dyn FnMut(&mut Reader<'a>, String) -> Result<()>) -> Result<()> {
        if !self.take(b'{') {
            return Err(self.fail("an object"));
        }
        if self.take(b'}') {
            return Ok(());
        }
        loop {
            let key = self.string()?;
            if !self.take(b':') {
                return Err(self.fail("a colon"));
            }
            each(self, key)?;
            if self.take(b'}') {
                return Ok(());
            }
            if !self.take(b',') {
                return Err(self.fail("a comma or the object's end"));
            }
        }
    }

    /// Calls `each` at every element, which `each` must read.
    pub(crate) fn array(&mut self, each: &mut dyn FnMut(&mut Reader<'a>) -> Result<()>) -> Result<()> {
        if !self.take(b'[') {
            return Err(self.fail("an array"));
        }
        if self.take(b']') {
            return Ok(());
        }
        loop {
            each(self)?;
            if self.take(b']') {
                return Ok(());
            }
            if !self.take(b',') {
                return Err(self.fail("a comma or the array's end"));
            }
        }
    }

    pub(crate) fn string(&mut self) -> Result<String> {
        if !self.take(b'"') {
            return Err(self.fail("a string"));
        }
        let mut found = String::new();
        loop {
            let rest = &self.text[self.at..];
            let plain =
                rest.find(|c: char| c == '"' || c == '\\' || c < ' ').ok_or_else(|| self.fail("a string's end"))?;
            found.push_str(&rest[..plain]);
            self.at += plain + 1;
            match rest.as_bytes()[plain] {
                b'"' => return Ok(found),
                b'\\' => found.push(self.escaped()?),
                _ => return Err(self.fail("no control character")),
            }
        }
    }

    /// What stands behind a backslash.
    fn escaped(&mut self) -> Result<char> {
        let byte = self.text.as_bytes().get(self.at).copied().unwrap_or(0);
        self.at += 1;
        Ok(match byte {
            b'"' | b'\\' | b'/' => char::from(byte),
            b'b' => '\u{8}',
            b'f' => '\u{c}',
            b'n' => '\n',
            b'r' => '\r',
            b't' => '\t',
            b'u' => {
                let mut code = self.four_digits()?;
                // A pair of surrogates is one character.
                if (0xd800..0xdc00).contains(&code) && self.text[self.at..].starts_with("\\u") {
                    self.at += 2;
                    let low = self.four_digits()?.checked_sub(0xdc00).filter(|low| *low < 0x400);
                    code = low.map_or(u32::MAX, |low| 0x10000 + ((code - 0xd800) << 10) + low);
                }
                char::from_u32(code).ok_or_else(|| self.fail("no half of a surrogate pair before this"))?
            }
            _ => {
                self.at -= 1;
                return Err(self.fail("an escape that JSON has"));
            }
        })
    }

    fn four_digits(&mut self) -> Result<u32> {
        let digits = self.text.as_bytes().get(self.at..self.at + 4).filter(|d| d.iter().all(u8::is_ascii_hexdigit));
        let digits = digits.ok_or_else(|| self.fail("four hexadecimal digits"))?;
        self.at += 4;
        Ok(digits.iter().fold(0, |code, &d| code * 16 + char::from(d).to_digit(16).unwrap_or(0)))
    }

    /// A number as it is written.
    fn number_text(&mut self) -> Result<&'a str> {
        self.peek();
        let start = self.at;
        let rest = &self.text[start..];
        let end = rest.find(|c: char| !matches!(c, '0'..='9' | '-' | '+' | '.' | 'e' | 'E')).unwrap_or(rest.len());
        let text = &rest[..end];
        if !is_number(text.as_bytes()) {
            return Err(self.fail("a number"));
        }
        self.at += end;
        Ok(text)
    }

    pub(crate) fn number(&mut self) -> Result<f64> {
        let text = self.number_text()?;
        Ok(parse_number(text))
    }

    /// A whole number from 0 on, written without point or exponent.
    pub(crate) fn integer(&mut self) -> Result<u64> {
        let start = self.at;
        let text = self.number_text()?;
        text.parse().map_err(|_| {
            self.at = start;
            self.fail("a whole number from 0 on")
        })
    }

    pub(crate) fn boolean(&mut self) -> Result<bool> {
        let yes = self.word("true");
        if yes || self.word("false") { Ok(yes) } else { Err(self.fail("true or false")) }
    }

    /// Any value, as its text.
    pub(crate) fn raw(&mut self) -> Result<&'a str> {
        self.peek();
        let start = self.at;
        self.skip(DEPTH)?;
        Ok(&self.text[start..self.at])
    }

    fn skip(&mut self, depth: usize) -> Result<()> {
        if depth == 0 {
            return Err(self.fail("less deep nesting"));
        }
        match self.peek() {
            b'{' => self.object(&mut |reader, _| reader.skip(depth - 1)),
            b'[' => self.array(&mut |reader| reader.skip(depth - 1)),
            b'"' => self.string().map(drop),
            b'n' if self.null() => Ok(()),
            b't' | b'f' => self.boolean().map(drop),
            _ => self.number_text().map(drop),
        }
    }

    /// That nothing follows.
    pub(crate) fn end(&mut self) -> Result<()> {
        if self.peek() == 0 && self.at == self.text.len() { Ok(()) } else { Err(self.fail("the end")) }
    }
}

/// `-?(0|[1-9]\d*)(\.\d+)?([eE][+-]?\d+)?`
fn is_number(text: &[u8]) -> bool {
    let digits = |from: usize| text[from..].iter().take_while(|b| b.is_ascii_digit()).count();
    let mut at = usize::from(text.first() == Some(&b'-'));
    let whole = digits(at);
    if whole == 0 || (whole > 1 && text[at] == b'0') {
        return false;
    }
    at += whole;
    if text.get(at) == Some(&b'.') {
        let fraction = digits(at + 1);
        if fraction == 0 {
            return false;
        }
        at += 1 + fraction;
    }
    if matches!(text.get(at), Some(b'e' | b'E')) {
        at += 1 + usize::from(matches!(text.get(at + 1), Some(b'+' | b'-')));
        let exponent = digits(at);
        if exponent == 0 {
            return false;
        }
        at += exponent;
    }
    at == text.len()
}

/// In the browser by JavaScript, which rounds as Rust does, so that Rust's own tables stay out of the wasm.
fn parse_number(text: &str) -> f64 {
    #[cfg(target_arch = "wasm32")]
    return js_sys::Number::parse_float(text);
    #[cfg(not(target_arch = "wasm32"))]
    text.parse().unwrap_or(f64::NAN)
}

/// Appends `text` in quotes; with `ascii` as Python writes it, other characters as `\u` escapes.
pub(crate) fn quote(out: &mut String, text: &str, ascii: bool) {
    out.push('"');
    for c in text.chars() {
        match c {
            '"' => out.push_str("\\\""),
            '\\' => out.push_str("\\\\"),
            '\n' => out.push_str("\\n"),
            '\r' => out.push_str("\\r"),
            '\t' => out.push_str("\\t"),
            '\u{8}' => out.push_str("\\b"),
            '\u{c}' => out.push_str("\\f"),
            c if c < ' ' || (ascii && c > '~') => {
                for unit in c.encode_utf16(&mut [0; 2]) {
                    out.push_str("\\u");
                    out.extend(
                        [12, 8, 4, 0].map(|shift| char::from_digit(u32::from(*unit >> shift & 15), 16).unwrap_or('0')),
                    );
                }
            }
            c => out.push(c),
        }
    }
    out.push('"');
}

/// [`quote`], as Python writes it.
pub(crate) fn quoted(text: &str) -> String {
    let mut out = String::new();
    quote(&mut out, text, true);
    out
}

/// A number as Python writes an integer, or else a float.
pub(crate) fn number(value: f64) -> String {
    crate::error::show_number(value)
}
