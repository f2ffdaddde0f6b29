//! Regular expressions over module names, in the dialect of Python's `re` as far as PEFT's configs use it: the same in the
//! browser and natively, in time linear in the name's length, whatever the pattern.
//!
//! Understood: characters, `.`, classes `[a-z_]` `[^.]`, escapes `\d \D \w \W \s \S` and of punctuation, groups `(…)` `(?:…)`
//! `(?P<name>…)`, `|`, `* + ? {m} {m,} {m,n}` and their lazy forms (which match the same names), `^ $ \A \Z \b \B`.
//! Look-around, back-references, flags and possessive forms are refused by name.

use crate::error::{Error, Result};

/// One step of the compiled pattern.
#[derive(Debug, Clone)]
enum Step {
    /// One character of these ranges, or with `true` one of no such range.
    Class(Vec<(char, char)>, bool),
    Start,
    End,
    /// Between a character of `\w` and something else; with `true` anywhere else.
    Boundary(bool),
    /// Goes on at both.
    Split(usize, usize),
    Jump(usize),
}

/// A compiled pattern.
#[derive(Debug, Clone)]
pub(crate) struct Pattern {
    steps: Vec<Step>,
}

/// More steps are refused: counted repeats multiply.
const MOST_STEPS: usize = 10_000;
const DEPTH: usize = 50;

impl Pattern {
    pub(crate) fn new(text: &str) -> Result<Pattern> {
        let mut parser = Parser { text, chars: text.chars().collect(), at: 0, steps: Vec::new() };
        parser.alternatives(DEPTH)?;
        if parser.at < parser.chars.len() {
            return Err(parser.fail("has a ) without its ("));
        }
        Ok(Pattern { steps: parser.steps })
    }

    /// How long it is, which its matching takes for each character of a name.
    pub(crate) fn steps(&self) -> usize {
        self.steps.len()
    }

    /// Whether the whole name matches, as `re.fullmatch`.
    pub(crate) fn matches(&self, name: &str) -> bool {
        self.run(name, true)
    }

    /// Whether the name's beginning matches, as `re.match`.
    pub(crate) fn matches_start(&self, name: &str) -> bool {
        self.run(name, false)
    }

    /// All places in the pattern that the name so far can lead to, character by character.
    fn run(&self, name: &str, whole: bool) -> bool {
        let (mut now, mut next) = (vec![false; self.steps.len() + 1], vec![false; self.steps.len() + 1]);
        let mut stack = vec![0];
        let mut chars = name.chars();
        let mut before = None;
        let word = |c: Option<char>| c.is_some_and(|c| c.is_ascii_alphanumeric() || c == '_');
        loop {
            let c = chars.next();
            // What is reached without a character.
            while let Some(at) = stack.pop() {
                if std::mem::replace(&mut now[at], true) {
                    continue;
                }
                match self.steps.get(at) {
                    Some(Step::Split(one, other)) => stack.extend([*other, *one]),
                    Some(Step::Jump(to)) => stack.push(*to),
                    Some(Step::Start) if before.is_none() => stack.push(at + 1),
                    Some(Step::End) if c.is_none() => stack.push(at + 1),
                    Some(Step::Boundary(not)) if (word(before) == word(c)) == *not => stack.push(at + 1),
                    _ => {}
                }
            }
            let done = now[self.steps.len()];
            if done && !whole {
                return true;
            }
            let Some(c) = c else { return done };
            for (at, _) in now.iter().enumerate().filter(|(_, here)| **here) {
                if let Some(Step::Class(ranges, negated)) = self.steps.get(at)
                    && ranges.iter().any(|(from, to)| (*from..=*to).contains(&c)) != *negated
                {
                    stack.push(at + 1);
                }
            }
            if stack.is_empty() {
                return false;
            }
            std::mem::swap(&mut now, &mut next);
            now.fill(false);
            before = Some(c);
        }
    }
}

struct Parser<'a> {
    text: &'a str,
    chars: Vec<char>,
    at: usize,
    steps: Vec<Step>,
}

impl Parser<'_> {
    fn fail(&self, reason: &str) -> Error {
        Error::file(&format!("the pattern `{}`", self.text), reason)
    }

    fn refuse(&self, what: &str) -> Error {
        Error::unsupported(format!(
            "the pattern `{}` has {what}, which module patterns cannot have here; expected one without, or a list of names",
            self.text
        ))
    }

    fn peek(&self) -> Option<char> {
        self.chars.get(self.at).copied()
    }

    fn take(&mut self, c: char) -> bool {
        let found = self.peek() == Some(c);
        self.at += usize::from(found);
        found
    }

    fn push(&mut self, step: Step) -> Result<()> {
        if self.steps.len() == MOST_STEPS {
            return Err(self.refuse("too many repeats"));
        }
        self.steps.push(step);
        Ok(())
    }

    /// `one|other|…`
    fn alternatives(&mut self, depth: usize) -> Result<()> {
        if depth == 0 {
            return Err(self.refuse("groups nested too deep"));
        }
        let mut ends = Vec::new();
        loop {
            let start = self.steps.len();
            while !matches!(self.peek(), None | Some('|' | ')')) {
                self.repeated(depth)?;
            }
            if !self.take('|') {
                break;
            }
            // Before this alternative a choice between it and the next, behind it a jump to the end.
            self.insert(start, Step::Split(start + 1, self.steps.len() + 2))?;
            ends.push(self.steps.len());
            self.push(Step::Jump(0))?;
        }
        for end in ends {
            self.steps[end] = Step::Jump(self.steps.len());
        }
        Ok(())
    }

    /// Puts a step before others, whose targets move on.
    fn insert(&mut self, at: usize, step: Step) -> Result<()> {
        self.push(step)?;
        let last = self.steps.len() - 1;
        (at..last).rev().for_each(|i| self.steps.swap(i, i + 1));
        let moved = |to: &mut usize| *to += usize::from(*to >= at);
        for step in &mut self.steps[at + 1..] {
            match step {
                Step::Split(one, other) => [one, other].into_iter().for_each(moved),
                Step::Jump(to) => moved(to),
                _ => {}
            }
        }
        Ok(())
    }

    /// One atom and how often.
    fn repeated(&mut self, depth: usize) -> Result<()> {
        let start = self.steps.len();
        self.atom(depth)?;
        let (least, most) = match self.peek() {
            Some('*') => (0, None),
            Some('+') => (1, None),
            Some('?') => (0, Some(1)),
            Some('{') => match self.counts() {
                Some(counts) => counts,
                None => return Ok(()), // a brace that counts nothing is a character
            },
            _ => return Ok(()),
        };
        self.at += 1;
        if self.take('+') {
            return Err(self.refuse("a possessive repeat"));
        }
        self.take('?'); // lazy: the same names
        if matches!(self.peek(), Some('*' | '+' | '?')) {
            return Err(self.fail("repeats a repeat"));
        }
        if most.is_some_and(|most| most < least) {
            return Err(self.fail("has a repeat whose counts are in the wrong order"));
        }
        // Copies are made of a body whose targets count from its own beginning.
        let body: Vec<Step> = self.steps.drain(start..).map(|step| shifted(step, start, 0)).collect();
        if body.is_empty() {
            return Ok(());
        }
        for _ in 0..least {
            self.copy(&body)?;
        }
        match most {
            None => {
                let split = self.steps.len();
                self.push(Step::Split(split + 1, split + body.len() + 2))?;
                self.copy(&body)?;
                self.push(Step::Jump(split))?;
            }
            Some(most) => {
                for _ in least..most {
                    let split = self.steps.len();
                    self.push(Step::Split(split + 1, split + body.len() + 1))?;
                    self.copy(&body)?;
                }
            }
        }
        Ok(())
    }

    fn copy(&mut self, body: &[Step]) -> Result<()> {
        let start = self.steps.len();
        body.iter().try_for_each(|step| self.push(shifted(step.clone(), 0, start)))
    }

    /// `{m}`, `{m,}`, `{,n}` or `{m,n}`, leaving the reader at the closing brace.
    fn counts(&mut self) -> Option<(usize, Option<usize>)> {
        let close = self.chars[self.at..].iter().position(|c| *c == '}')? + self.at;
        let inner: String = self.chars[self.at + 1..close].iter().collect();
        let (least, most) = match inner.split_once(',') {
            None => (inner.parse().ok()?, Some(inner.parse().ok()?)),
            Some((least, "")) => (least.parse().ok()?, None),
            Some(("", most)) => (0, Some(most.parse().ok()?)),
            Some((least, most)) => (least.parse().ok()?, Some(most.parse().ok()?)),
        };
        self.at = close;
        Some((least, most))
    }

    fn atom(&mut self, depth: usize) -> Result<()> {
        let Some(c) = self.peek() else { return Err(self.fail("ends too early")) };
        self.at += 1;
        match c {
            '(' => {
                if self.take('?') {
                    self.group_kind()?;
                }
                self.alternatives(depth - 1)?;
                if !self.take(')') {
                    return Err(self.fail("has a ( without its )"));
                }
                Ok(())
            }
            '[' => self.class(),
            '.' => self.push(Step::Class(vec![('\n', '\n')], true)),
            '^' => self.push(Step::Start),
            '$' => self.push(Step::End),
            '*' | '+' | '?' => Err(self.fail("repeats nothing")),
            '\\' => match self.peek() {
                Some('A') => {
                    self.at += 1;
                    self.push(Step::Start)
                }
                Some('Z') => {
                    self.at += 1;
                    self.push(Step::End)
                }
                Some(c @ ('b' | 'B')) => {
                    self.at += 1;
                    self.push(Step::Boundary(c == 'B'))
                }
                _ => {
                    let (ranges, negated) = self.escape()?;
                    self.push(Step::Class(ranges, negated))
                }
            },
            c => self.push(Step::Class(vec![(c, c)], false)),
        }
    }

    /// What stands behind `(?`.
    fn group_kind(&mut self) -> Result<()> {
        let next = |i: usize| self.chars.get(self.at + i).copied();
        match (next(0), next(1)) {
            (Some(':'), _) => self.at += 1,
            (Some('P'), Some('<')) => {
                let end = self.chars[self.at..].iter().position(|c| *c == '>');
                self.at += end.ok_or_else(|| self.fail("has a group name without its >"))? + 1;
            }
            (Some('=' | '!'), _) | (Some('<'), Some('=' | '!')) => return Err(self.refuse("look-around")),
            (Some('P'), _) | (Some('('), _) => return Err(self.refuse("a back-reference")),
            _ => return Err(self.refuse("a group with flags")),
        }
        Ok(())
    }

    /// What stands behind a backslash, as ranges and whether they are those left out.
    fn escape(&mut self) -> Result<(Vec<(char, char)>, bool)> {
        let Some(c) = self.peek() else { return Err(self.fail("ends in a backslash")) };
        self.at += 1;
        let one = |c| (vec![(c, c)], false);
        Ok(match c {
            'd' | 'D' => (vec![('0', '9')], c == 'D'),
            'w' | 'W' => (vec![('a', 'z'), ('A', 'Z'), ('0', '9'), ('_', '_')], c == 'W'),
            's' | 'S' => (vec![(' ', ' '), ('\t', '\r')], c == 'S'),
            'n' => one('\n'),
            't' => one('\t'),
            'r' => one('\r'),
            '0'..='9' => return Err(self.refuse("a back-reference")),
            c if c.is_ascii_alphabetic() => return Err(self.refuse(&format!("the escape \\{c}"))),
            c => one(c),
        })
    }

    /// What stands behind `[`.
    fn class(&mut self) -> Result<()> {
        let negated = self.take('^');
        let mut ranges = Vec::new();
        let first = self.at;
        loop {
            let Some(c) = self.peek() else { return Err(self.fail("has a [ without its ]")) };
            self.at += 1;
            let from = match c {
                ']' if self.at > first + 1 => break,
                '\\' => {
                    let (found, left_out) = self.escape()?;
                    if left_out {
                        return Err(self.refuse("an escape of left-out characters within [ ]"));
                    }
                    match found[..] {
                        [(one, other)] if one == other => one,
                        _ => {
                            ranges.extend(found);
                            continue;
                        }
                    }
                }
                c => c,
            };
            let next = self.chars.get(self.at + 1).copied();
            if self.peek() == Some('-') && next.is_some_and(|c| c != ']') {
                self.at += 2;
                let to = match next {
                    Some('\\') => self.escape()?.0[0].0,
                    Some(c) => c,
                    None => return Err(self.fail("has a [ without its ]")),
                };
                if to < from {
                    return Err(self.fail("has a range in the wrong order"));
                }
                ranges.push((from, to));
            } else {
                ranges.push((from, from));
            }
        }
        self.push(Step::Class(ranges, negated))
    }
}

/// A step whose targets counted from `from`, made to count from `to`.
fn shifted(mut step: Step, from: usize, to: usize) -> Step {
    let moved = |target: &mut usize| *target = *target - from + to;
    match &mut step {
        Step::Split(one, other) => [one, other].into_iter().for_each(moved),
        Step::Jump(target) => moved(target),
        _ => {}
    }
    step
}
