//! What a report is made of, whoever writes it down: titles, words, tables, pictures.
//!
//! Plain data with the figures as text. Not here: what is told (`sections`, `measured`, `figures`), Markdown and HTML. Invariant: nothing in
//! it is made safe yet; whoever writes it down cleans and escapes every string.

/// A whole report.
#[derive(Debug, Clone, Default)]
pub struct Document {
    pub title: String,
    /// What the session is about.
    pub facts: Vec<Words>,
    pub sections: Vec<Section>,
}

#[derive(Debug, Clone, Default)]
pub struct Section {
    pub title: String,
    pub parts: Vec<Part>,
}

#[derive(Debug, Clone)]
pub enum Part {
    Words(Words),
    List(Vec<Words>),
    Table(Table),
    /// Where there is room for pictures, with what is to be said of them.
    Pictures(Vec<Picture>, String),
    /// Long, and told elsewhere in short: folded away under these words where that can be done, else left out.
    Folded(String, Table),
}

/// Running text; parts of it stand out.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Words(pub Vec<(Style, String)>);

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Style {
    Plain,
    Code,
    Strong,
}

#[derive(Debug, Clone, Default)]
pub struct Table {
    pub columns: Vec<String>,
    pub rows: Vec<Row>,
}

#[derive(Debug, Clone, Default)]
pub struct Row {
    pub cells: Vec<String>,
    /// Of what is no longer so.
    pub faint: bool,
}

#[derive(Debug, Clone)]
pub enum Picture {
    Plot(Plot),
    Bars(Bars),
}

/// Points over two axes.
#[derive(Debug, Clone, Default)]
pub struct Plot {
    pub title: String,
    pub x: Axis,
    pub y: Axis,
    pub series: Vec<Series>,
    pub guides: Vec<Guide>,
    /// One of many that are held against each other.
    pub small: bool,
}

#[derive(Debug, Clone, Default)]
pub struct Axis {
    /// With its unit.
    pub title: String,
    /// From zero on, whatever the points.
    pub from_zero: bool,
    /// In decades, from the foot on; what lies below is drawn there.
    pub decades_from: Option<f64>,
    /// What others of its kind reach, so that they can be compared.
    pub upto: Option<f64>,
}

#[derive(Debug, Clone, Default)]
pub struct Series {
    /// For the legend; empty: not in it.
    pub name: String,
    pub line: Line,
    pub dots: Vec<Dot>,
    /// Which of the colours.
    pub tone: usize,
}

#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum Line {
    #[default]
    None,
    Straight,
    /// At an x, the y of the point before.
    Steps,
}

#[derive(Debug, Clone, Default)]
pub struct Dot {
    pub x: f64,
    pub y: f64,
    pub x_ends: Option<(f64, f64)>,
    pub y_ends: Option<(f64, f64)>,
    /// Beside the point.
    pub label: String,
    pub look: Look,
}

#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum Look {
    #[default]
    Filled,
    /// Expected, or in doubt.
    Hollow,
    /// Only where a line bends.
    None,
}

/// A line across that something is held against.
#[derive(Debug, Clone)]
pub struct Guide {
    pub at: f64,
    pub upright: bool,
    pub label: String,
}

/// Named values to both sides of zero.
#[derive(Debug, Clone, Default)]
pub struct Bars {
    pub title: String,
    /// What a bar is, with its unit.
    pub unit: String,
    /// Name, value, and the value as text.
    pub bars: Vec<(String, f64, String)>,
}

impl Words {
    pub fn and(mut self, text: impl Into<String>) -> Words {
        self.0.push((Style::Plain, text.into()));
        self
    }

    pub fn code(mut self, text: impl Into<String>) -> Words {
        self.0.push((Style::Code, text.into()));
        self
    }

    pub fn strong(mut self, text: impl Into<String>) -> Words {
        self.0.push((Style::Strong, text.into()));
        self
    }
}

impl<T: Into<String>> From<T> for Words {
    fn from(text: T) -> Words {
        Words::default().and(text)
    }
}

impl Table {
    pub fn new<T: Into<String>>(columns: impl IntoIterator<Item = T>) -> Table {
        Table { columns: columns.into_iter().map(Into::into).collect(), rows: Vec::new() }
    }

    pub fn row(&mut self, cells: impl IntoIterator<Item = String>) {
        self.rows.push(Row { cells: cells.into_iter().collect(), faint: false });
    }

    /// Without columns in which nothing stands.
    pub fn told(mut self) -> Table {
        let full: Vec<bool> = (0..self.columns.len())
            .map(|i| self.rows.iter().any(|r| r.cells.get(i).is_some_and(|c| !c.is_empty())))
            .collect();
        let keep =
            |cells: Vec<String>| cells.into_iter().zip(&full).filter(|(_, full)| **full).map(|(c, _)| c).collect();
        self.columns = keep(std::mem::take(&mut self.columns));
        for r in &mut self.rows {
            r.cells = keep(std::mem::take(&mut r.cells));
        }
        self
    }
}

impl Section {
    pub fn new(title: impl Into<String>) -> Section {
        Section { title: title.into(), parts: Vec::new() }
    }

    pub fn table(mut self, table: Table) -> Section {
        if !table.rows.is_empty() {
            self.parts.push(Part::Table(table.told()));
        }
        self
    }

    pub fn folded(mut self, words: impl Into<String>, table: Table) -> Section {
        if !table.rows.is_empty() {
            self.parts.push(Part::Folded(words.into(), table.told()));
        }
        self
    }

    pub fn words(mut self, words: impl Into<Words>) -> Section {
        self.parts.push(Part::Words(words.into()));
        self
    }

    pub fn list(mut self, all: impl IntoIterator<Item = Words>) -> Section {
        let all: Vec<Words> = all.into_iter().collect();
        if !all.is_empty() {
            self.parts.push(Part::List(all));
        }
        self
    }

    pub fn pictures(mut self, all: impl IntoIterator<Item = Picture>, words: impl Into<String>) -> Section {
        let all: Vec<Picture> = all.into_iter().collect();
        if !all.is_empty() {
            self.parts.push(Part::Pictures(all, words.into()));
        }
        self
    }
}
