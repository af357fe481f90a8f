//! Markdown as lines of a terminal: what agents write (CommonMark with tables), read while it streams.
//!
//! Invariants: nothing is lost: what is no emphasis by our reading (`blocks.*.mlp`, `__init__`), what would be a definition, HTML and tables that
//! do not fit stand as they were written. Text that came before the last block never changes again, and is not read again: [`settle`] goes on
//! from where it was, a part of at most [`MOST`] bytes at a time, so that neither length nor nesting costs more than its own size. Line breaks
//! are the author's. Not here: colours (`draw/agents`), what is copied (`yank`: the text as it was written).

mod inline;
mod table;

use crate::config::text::clean_lines;
use inline::hides;
pub use inline::{Look, Rendered};
use pulldown_cmark::{CodeBlockKind, CowStr, Event, LinkType, Options, Parser, Tag, TagEnd};
use std::borrow::Cow;
use std::ops::Range;
use table::Table;

/// Bytes that are read at once: a block that is longer is cut.
const MOST: usize = 16 << 10;
/// Quotes and lists inside of each other that are set in; deeper ones stand where these do.
const DEEP: usize = 8;
/// Bytes that are looked at for a blank line before a block, and of the longest fence that goes on behind a cut.
const NEAR: usize = 256;

/// How far a text was read for good.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Place {
    pub at: usize,
    /// The fence of the code that was cut there; empty where none was.
    fence: String,
}

/// Lines of `text` from `place` on that nothing which follows can change; `place` moves behind them.
pub fn settle(text: &str, place: &mut Place, width: usize, out: &mut Vec<Rendered>) {
    loop {
        let tail = &text[place.at..];
        let long = tail.len() > MOST;
        let part = if long { start(tail) } else { &tail[..tail.rfind('\n').map_or(0, |i| i + 1)] };
        if part.is_empty() {
            return;
        }
        let source = fenced(&place.fence, part);
        let lead = source.len() - part.len();
        let (last, fence) = last_block(&source);
        let (upto, fence) = match last > lead {
            true => (last - lead, String::new()),
            false if long => (part.len(), fence),
            false => return,
        };
        render(text, place, &part[..upto], width, out);
        *place = Place { at: place.at + upto, fence };
    }
}

/// Lines of what is left behind `place`, as it looks now; `live` where more is to come.
pub fn rest(text: &str, place: &Place, live: bool, width: usize, out: &mut Vec<Rendered>) {
    let tail = &text[place.at..];
    let shown = if live { closed(&place.fence, begun(tail)) } else { Cow::Borrowed(tail) };
    render(text, place, &shown, width, out);
}

fn options() -> Options {
    // Neither `~` (about) nor quotes nor dollars mean anything but themselves.
    Options::ENABLE_TABLES
}

/// The first part of a long text: whole lines where there are any.
fn start(tail: &str) -> &str {
    let end = (0..=MOST).rev().find(|i| tail.is_char_boundary(*i)).unwrap_or(0);
    let part = &tail[..end];
    part.rfind('\n').map_or(part, |i| &part[..=i])
}

/// `part` with the fence before it that it goes on behind.
fn fenced<'a>(fence: &str, part: &'a str) -> Cow<'a, str> {
    if fence.is_empty() { Cow::Borrowed(part) } else { Cow::Owned(format!("{fence}\n{part}")) }
}

/// Where the last block of `source` begins, and its fence where it is code that goes on.
fn last_block(source: &str) -> (usize, String) {
    let (mut depth, mut last, mut fence) = (0usize, 0, String::new());
    for (event, range) in Parser::new_ext(source, options()).into_offset_iter() {
        match event {
            Event::Start(tag) => {
                if depth == 0 {
                    last = range.start;
                    fence = match tag {
                        Tag::CodeBlock(CodeBlockKind::Fenced(_)) => open_fence(&source[range]),
                        _ => String::new(),
                    };
                }
                depth += 1;
            }
            Event::End(_) => depth = depth.saturating_sub(1),
            Event::Rule if depth == 0 => (last, fence) = (range.start, String::new()),
            _ => {}
        }
    }
    // At the line's start, so that what sets it in goes with it.
    (source[..last].rfind('\n').map_or(0, |i| i + 1), fence)
}

/// The fence that `block` begins with, where none ends it.
fn open_fence(block: &str) -> String {
    let Some(mark) = block.chars().next().filter(|c| matches!(c, '`' | '~')) else { return String::new() };
    let fence: String = block.chars().take_while(|c| *c == mark).collect();
    let ends = |line: &str| line.len() >= fence.len() && line.chars().all(|c| c == mark);
    if fence.len() > NEAR {
        return String::new();
    }
    let over = block.lines().count() > 1 && block.lines().last().is_some_and(|line| ends(line.trim()));
    if over { String::new() } else { fence }
}

/// A text that grows without its last line while that has nothing but marks, which may come to mean anything.
fn begun(tail: &str) -> &str {
    let line = tail.rfind('\n').map_or(0, |i| i + 1);
    let only_marks = |c: char| " \t-=*_`#>+~|:".contains(c);
    let last = &tail[line..];
    if !last.trim().is_empty() && last.chars().all(only_marks) {
        return &tail[..line];
    }
    tail.trim_end_matches(['*', '_', '`'])
}

/// A text that grows with what its last paragraph has begun ended: strong words and code that are not over yet.
fn closed<'a>(fence: &str, tail: &'a str) -> Cow<'a, str> {
    let source = fenced(fence, tail);
    let mut block = None;
    for event in Parser::new_ext(&source, options()) {
        if let Event::Start(
            tag @ (Tag::CodeBlock(_) | Tag::Paragraph | Tag::Item | Tag::HtmlBlock | Tag::Heading { .. }),
        ) = event
        {
            block = Some(matches!(tag, Tag::CodeBlock(_) | Tag::HtmlBlock));
        }
    }
    let paragraph = tail.rfind("\n\n").map_or(0, |i| i + 2);
    let (mut code, mut strong, mut rest) = (0, false, &tail[paragraph..]);
    let mut before = ' ';
    while let Some(c) = rest.chars().next() {
        let run = if matches!(c, '`' | '*') { rest.bytes().take_while(|b| char::from(*b) == c).count() } else { 1 };
        let after = &rest[run * c.len_utf8()..];
        match c {
            '`' if code == 0 => code = run,
            '`' if code == run => code = 0,
            '*' if code == 0 && run == 2 => {
                let next = after.chars().next().unwrap_or(' ');
                let opens = !next.is_whitespace() && !inline::in_name(before);
                strong = if strong { before.is_whitespace() } else { opens };
            }
            _ => {}
        }
        (before, rest) = (c, after);
    }
    let marks = "`".repeat(code) + if strong { "**" } else { "" };
    match marks.is_empty() || block == Some(true) {
        true => Cow::Borrowed(tail),
        false => Cow::Owned(format!("{}{marks}", tail.trim_end())),
    }
}

/// Whether a blank line ends `before`, marks of quotes left aside.
fn blank_before(before: &str) -> bool {
    let near = before.bytes().rev().take(NEAR).take_while(|b| b" \t>\n".contains(b));
    near.filter(|b| *b == b'\n').count() > 1
}

/// Lines of `part`, which stands for what `text` has from `place` on.
fn render(text: &str, place: &Place, part: &str, width: usize, out: &mut Vec<Rendered>) {
    let source = fenced(&place.fence, part);
    let before = &text[..place.at];
    let blank = place.fence.is_empty() && blank_before(before) && !before.trim_end().is_empty();
    let mut writer = Writer::new(&source, blank, width, out);
    for (event, range) in Parser::new_ext(&source, options()).into_offset_iter() {
        writer.event(event, range);
    }
    writer.finish();
}

/// What lines stand in.
enum Inside {
    Quote,
    Code,
    List(Option<u64>),
    /// An item with its mark, which stands before its first line alone.
    Item {
        mark: String,
        used: bool,
    },
}

struct Writer<'a> {
    source: &'a str,
    /// A blank line comes before the first block.
    blank: bool,
    width: usize,
    out: &'a mut Vec<Rendered>,
    inside: Vec<Inside>,
    line: Rendered,
    look: Look,
    /// Links and emphasis that are open: what they look like from outside, whether their marks are hidden, where their text began.
    open: Vec<(Look, bool, usize)>,
    table: Option<Table>,
    code: bool,
    /// Up to where the source was told.
    told: usize,
}

impl<'a> Writer<'a> {
    fn new(source: &'a str, blank: bool, width: usize, out: &'a mut Vec<Rendered>) -> Writer<'a> {
        let line = Rendered::default();
        let (inside, open) = (Vec::new(), Vec::new());
        Writer {
            source,
            blank,
            width,
            out,
            inside,
            line,
            look: Look::default(),
            open,
            table: None,
            code: false,
            told: 0,
        }
    }

    fn event(&mut self, event: Event<'_>, range: Range<usize>) {
        let inline = matches!(
            event,
            Event::End(TagEnd::Emphasis | TagEnd::Strong | TagEnd::Link | TagEnd::Image | TagEnd::CodeBlock)
        );
        if !inline {
            self.definitions(if matches!(event, Event::End(_)) { range.end } else { range.start });
        }
        let end = range.end;
        match event {
            Event::Start(tag) => return self.start(tag, range),
            Event::End(tag) => self.end(tag, range),
            Event::Text(text) if self.code => self.line.push(&clean_lines(&text), self.look),
            Event::Text(text) | Event::InlineHtml(text) => self.words(&text),
            Event::Html(text) => self.line.push(&clean_lines(&text), self.look),
            Event::Code(text) => self.line.push(&clean_lines(&text), Look { code: true, ..self.look }),
            Event::SoftBreak | Event::HardBreak => self.line.push("\n", self.look),
            Event::Rule => {
                self.block(range.start);
                let rule = Rendered::marked("─".repeat(self.room().min(40)));
                self.put(rule);
            }
            Event::InlineMath(_) | Event::DisplayMath(_) | Event::FootnoteReference(_) | Event::TaskListMarker(_) => {
                self.words(&self.source[range])
            }
        }
        self.told = self.told.max(end);
    }

    fn words(&mut self, text: &str) {
        self.line.push(&clean_lines(text), self.look);
    }

    /// What lies between what was told and `upto` and would be a definition of an address: told as it was written.
    fn definitions(&mut self, upto: usize) {
        let Some(gap) = self.source.get(self.told..upto).filter(|gap| gap.contains("]:")) else { return };
        self.flush();
        for line in gap.lines().filter(|l| !l.trim_matches([' ', '\t', '>']).is_empty()) {
            // Without the marks of what it stands in.
            let from = line.find('[').filter(|_| line.contains("]:")).unwrap_or(0);
            self.line.push(&clean_lines(line[from..].trim()), self.look);
            self.flush();
        }
        self.told = upto;
    }

    fn start(&mut self, tag: Tag<'_>, range: Range<usize>) {
        match tag {
            Tag::Emphasis | Tag::Strong => {
                let marks = if matches!(tag, Tag::Strong) { 2 } else { 1 };
                let hidden = hides(self.source, &range, marks);
                self.open.push((self.look, hidden, self.line.text.len()));
                let mark = &self.source[range.start..range.start + marks];
                if hidden {
                    let strong = self.look.strong || marks == 2;
                    self.look = Look { strong, emphasis: self.look.emphasis || marks == 1, ..self.look };
                } else {
                    self.line.push(mark, self.look);
                }
                self.told = self.told.max(range.start + marks);
            }
            Tag::Link { link_type, dest_url, .. } | Tag::Image { link_type, dest_url, .. } => {
                let hidden = is_link(link_type, &dest_url);
                self.open.push((self.look, hidden, self.line.text.len()));
                if hidden {
                    self.look = Look { link: true, ..self.look };
                } else {
                    let begin = if self.source[range.start..].starts_with('!') { "![" } else { "[" };
                    self.line.push(begin, self.look);
                    self.told = self.told.max(range.start + begin.len());
                }
            }
            Tag::TableHead | Tag::TableRow | Tag::TableCell => {}
            block => {
                self.block(range.start);
                self.begin(block, range);
            }
        }
    }

    fn begin(&mut self, block: Tag<'_>, range: Range<usize>) {
        match block {
            Tag::Heading { .. } => self.look = Look { heading: true, ..Look::default() },
            Tag::BlockQuote(_) => self.inside.push(Inside::Quote),
            Tag::List(first) => self.inside.push(Inside::List(first)),
            Tag::Item => {
                let mark = match self.inside.last_mut() {
                    Some(Inside::List(Some(n))) => {
                        let mark = format!("{n}. ");
                        *n = n.saturating_add(1);
                        mark
                    }
                    _ => "• ".to_owned(),
                };
                self.inside.push(Inside::Item { mark, used: false });
            }
            Tag::CodeBlock(_) => {
                self.inside.push(Inside::Code);
                (self.code, self.look) = (true, Look { code: true, ..Look::default() });
                // Its fence is told.
                let fence = self.source[range.clone()].find('\n').map_or(range.end, |i| range.start + i);
                self.told = self.told.max(fence);
            }
            Tag::Table(columns) => self.table = Some(Table::new(columns)),
            _ => {}
        }
    }

    fn end(&mut self, tag: TagEnd, range: Range<usize>) {
        match tag {
            TagEnd::Emphasis | TagEnd::Strong => {
                let Some((outside, hidden, _)) = self.open.pop() else { return };
                self.look = outside;
                if !hidden {
                    let marks = if tag == TagEnd::Strong { 2 } else { 1 };
                    self.line.push(&self.source[range.end - marks..range.end], outside);
                }
            }
            TagEnd::Link | TagEnd::Image => self.end_link(range),
            TagEnd::TableCell => {
                let cell = std::mem::take(&mut self.line);
                self.table.iter_mut().for_each(|t| t.cell(cell.clone()));
            }
            TagEnd::TableHead | TagEnd::TableRow => self.table.iter_mut().for_each(Table::end_row),
            TagEnd::Table => {
                let room = self.room();
                match self.table.take().and_then(|t| t.lines(room)) {
                    Some(lines) => lines.into_iter().for_each(|l| self.put(l)),
                    None => {
                        for line in self.source[range].lines() {
                            self.words(line.trim_start_matches([' ', '>']));
                            self.flush();
                        }
                    }
                }
            }
            TagEnd::CodeBlock => {
                self.flush();
                self.inside.pop();
                (self.code, self.look) = (false, Look::default());
            }
            TagEnd::Heading(_) => {
                self.flush();
                self.look = Look::default();
            }
            TagEnd::BlockQuote(_) | TagEnd::List(_) => {
                self.flush();
                self.inside.pop();
            }
            TagEnd::Item => {
                self.flush();
                // An item without words has a line too.
                if matches!(self.inside.last(), Some(Inside::Item { used: false, .. })) {
                    self.put(Rendered::default());
                }
                self.inside.pop();
            }
            _ => self.flush(),
        }
    }

    /// The address behind a link's text, unless that is the text.
    fn end_link(&mut self, range: Range<usize>) {
        let Some((outside, hidden, from)) = self.open.pop() else { return };
        let link = std::mem::replace(&mut self.look, outside);
        let source = &self.source[range.clone()];
        if !hidden {
            let rest = &self.source[self.told.clamp(range.start, range.end)..range.end];
            return self.words(rest);
        }
        let Some(address) = address(source) else { return };
        if self.line.text.get(from..).is_none_or(|text| text != address) {
            let text = format!(" ({})", clean_lines(address));
            self.line.push(&text, Look { link: true, ..link });
        }
    }

    /// Ends what stands before a block, with a blank line where the source has one.
    fn block(&mut self, start: usize) {
        self.flush();
        let before = &self.source[..start];
        let blank = match before.trim().is_empty() {
            true => std::mem::take(&mut self.blank),
            false => blank_before(before),
        };
        // Lines of earlier parts may be elsewhere by now.
        if blank && self.out.last().is_none_or(|l| !l.text.trim_end_matches(['┃', ' ']).is_empty()) {
            let quotes = self.inside.iter().take(DEEP).filter(|i| matches!(i, Inside::Quote)).count();
            self.out.push(Rendered::marked("┃ ".repeat(quotes).trim_end().to_owned()));
        }
    }

    /// Columns beside what lines stand in.
    fn room(&self) -> usize {
        let width = self.width.max(8);
        let taken = (self.inside.iter().take(DEEP)).map(|i| match i {
            Inside::Quote | Inside::Code => 2,
            Inside::List(_) => 0,
            Inside::Item { mark, .. } => mark.chars().count(),
        });
        width.saturating_sub(taken.sum()).max(width / 2).max(4)
    }

    /// Words so far become lines.
    fn flush(&mut self) {
        let mut line = std::mem::take(&mut self.line);
        line.trim_end();
        if !line.text.is_empty() {
            let room = self.room();
            line.wrapped(room).into_iter().for_each(|l| self.put(l));
        }
    }

    /// A line behind the marks of what it stands in.
    fn put(&mut self, line: Rendered) {
        let mut before = String::new();
        let most = self.width.max(8).div_ceil(2);
        for inside in self.inside.iter_mut().take(DEEP) {
            match inside {
                Inside::Quote => before.push_str("┃ "),
                Inside::Code => before.push_str("  "),
                Inside::List(_) => {}
                Inside::Item { mark, used: true } => before.extend(std::iter::repeat_n(' ', mark.chars().count())),
                Inside::Item { mark, used } => {
                    before.push_str(mark);
                    *used = true;
                }
            }
        }
        // Deeper items have their mark at least.
        if self.inside.len() > DEEP
            && let Some(Inside::Item { mark, used }) = self.inside.last_mut()
            && !std::mem::replace(used, true)
        {
            before.push_str(mark);
        }
        if before.chars().count() > most {
            before = before.chars().skip(before.chars().count() - most).collect();
        }
        self.out.push(line.behind(&before));
    }

    fn finish(mut self) {
        self.definitions(self.source.len());
        self.flush();
    }
}

/// Whether `[text](address)` is taken for a link, not for an index and its argument.
fn is_link(kind: LinkType, address: &CowStr<'_>) -> bool {
    match kind {
        LinkType::Autolink | LinkType::Email => true,
        LinkType::Inline => address.contains([':', '/', '#', '.']),
        _ => false,
    }
}

/// The address in the source of a link: `[text](address "title")`; none of `<address>`, which is its own text.
fn address(source: &str) -> Option<&str> {
    let inner = source.strip_suffix(')')?;
    let at = inner.rfind("](")?;
    Some(inner[at + 2..].trim())
}

#[cfg(test)]
mod tests;
