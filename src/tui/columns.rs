//! Columns of the layer list: a registry of figures, sets of them, and which are shown.
//!
//! Pure data. Not here: what a row has of a column (`readings`), how that is drawn (`draw/layers`). Invariant: figures stand in the order of their names
//! in `config`, which settings, the command line and expressions share.

use crate::config::columns::{FIGURES, ORDER, OwnColumn, SETS, define, names};
use crate::config::suggestion;

/// A figure that the list has a column of.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Figure {
    P50,
    P95,
    Share,
    Memory,
    Macs,
    Params,
    Sens,
    Activations,
    Intensity,
    Change,
    Error,
    Int8,
    W4,
    Weight,
    Zeros,
    Rank,
    Gradient,
    Importance,
    Noise,
}

use Figure::*;

/// What is said of a figure.
struct Spec {
    figure: Figure,
    heading: &'static str,
    /// What rows are sorted by, in words.
    label: &'static str,
    /// Columns on the screen.
    width: u16,
}

const fn spec(figure: Figure, heading: &'static str, label: &'static str, width: u16) -> Spec {
    Spec { figure, heading, label, width }
}

/// In the order of [`FIGURES`].
const SPECS: [Spec; FIGURES.len()] = [
    spec(P50, "p50 ms", "latency", 7),
    spec(P95, "p95 ms", "p95", 7),
    spec(Share, "share", "share", 7),
    spec(Memory, "mem MB", "memory", 7),
    spec(Macs, "MACs M", "MACs", 7),
    spec(Params, "params", "params", 7),
    spec(Sens, "sens", "sensitivity", 5),
    spec(Activations, "act MB", "activations", 7),
    spec(Intensity, "FLOP/B", "intensity", 7),
    spec(Change, "vs pin", "change", 8),
    spec(Error, "off %", "error", 6),
    spec(Int8, "int8 %", "int8 error", 7),
    spec(W4, "w4 %", "w4 error", 6),
    spec(Weight, "|w|", "weight norm", 6),
    spec(Zeros, "zeros%", "zeros", 6),
    spec(Rank, "rank %", "rank", 6),
    spec(Gradient, "|g|", "gradient norm", 7),
    spec(Importance, "|gw|", "importance", 7),
    spec(Noise, "noise", "gradient noise", 6),
];

impl Figure {
    pub const ALL: [Figure; FIGURES.len()] = {
        let mut all = [P50; FIGURES.len()];
        let mut i = 0;
        while i < all.len() {
            all[i] = SPECS[i].figure;
            i += 1;
        }
        all
    };

    fn spec(self) -> &'static Spec {
        &SPECS[self as usize]
    }

    pub fn name(self) -> &'static str {
        FIGURES[self as usize].name
    }

    pub fn heading(self) -> &'static str {
        self.spec().heading
    }

    pub fn width(self) -> u16 {
        self.spec().width
    }

    /// A rounding error of weights.
    pub fn is_error(self) -> bool {
        matches!(self, Error | Int8 | W4)
    }
}

/// What rows can be sorted by and have a column of.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Column {
    Figure(Figure),
    /// One that the user wrote, by its place among these.
    Own(usize),
}

/// Columns that belong together.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Hash)]
pub enum Set {
    #[default]
    Costs,
    /// Of weights and gradients.
    Parameters,
    Speed,
    /// Those that the user picked.
    Picked,
}

impl Set {
    /// The sets that have a name, in the order of [`SETS`].
    const NAMED: [Set; SETS.len()] = [Set::Costs, Set::Parameters, Set::Speed];

    fn figures(self) -> &'static [Figure] {
        match self {
            Set::Costs => &[P50, Share, Memory, Macs, Params, Sens],
            Set::Parameters => &[P50, Weight, Zeros, Rank, Gradient, Importance, Noise],
            Set::Speed => &[P50, P95, Intensity, Change, Activations, Error],
            Set::Picked => &[],
        }
    }

    /// What gives way where there is no room, first to last.
    fn drops(self) -> &'static [Figure] {
        match self {
            Set::Costs => &[Params, Share, Memory, Macs, Sens, P50],
            Set::Parameters => &[P50, Zeros, Rank, Noise, Weight, Importance, Gradient],
            Set::Speed => &[Error, Activations, Intensity, P95, Change, P50],
            Set::Picked => &[],
        }
    }
}

/// Which columns are shown, and those that the user wrote.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Columns {
    pub set: Set,
    picked: Vec<Column>,
    own: Vec<OwnColumn>,
}

impl Columns {
    /// As settings say, which were checked.
    pub fn new(words: &[String], own: &[OwnColumn]) -> Columns {
        let mut columns = Columns { own: own.to_vec(), ..Columns::default() };
        let words: Vec<&str> = words.iter().map(String::as_str).collect();
        // What is no column was told when settings were read.
        drop(columns.pick(&words));
        columns
    }

    pub fn shown(&self) -> Vec<Column> {
        match self.set {
            Set::Picked => self.picked.clone(),
            set => set.figures().iter().copied().map(Column::Figure).collect(),
        }
    }

    /// Those that are shown, in the order in which they give way: of what the user picked the last ones first.
    pub fn drops(&self) -> Vec<Column> {
        match self.set {
            Set::Picked => self.picked.iter().rev().copied().collect(),
            set => set.drops().iter().copied().map(Column::Figure).collect(),
        }
    }

    /// Shows the next set; what the user picked is one of them.
    pub fn next(&mut self) {
        self.set = match self.set {
            Set::Costs => Set::Parameters,
            Set::Parameters => Set::Speed,
            Set::Speed if !self.picked.is_empty() => Set::Picked,
            Set::Speed | Set::Picked => Set::Costs,
        };
    }

    /// Shows a set by its word, or columns by their names.
    ///
    /// # Errors
    /// In words with a hint, about the first that is none.
    pub fn pick(&mut self, words: &[&str]) -> Result<(), String> {
        if let [word] = words
            && let Some(at) = SETS.iter().position(|s| s == word)
        {
            self.set = Set::NAMED[at];
            return Ok(());
        }
        let mut picked = Vec::new();
        for word in words {
            let column = self.named(word)?;
            if !picked.contains(&column) {
                picked.push(column);
            }
        }
        if picked.is_empty() {
            return Err(
                "no column is named; hint: for example `:columns p50 p95 change`, or `:columns speed`".to_owned()
            );
        }
        (self.set, self.picked) = (Set::Picked, picked);
        Ok(())
    }

    /// Shows `column`, in a set that has it, or behind those that are shown.
    pub fn show(&mut self, column: Column) {
        let shown = self.shown();
        if shown.contains(&column) {
            return;
        }
        let has = |set: &&Set| matches!(column, Column::Figure(f) if set.figures().contains(&f));
        match Set::NAMED.iter().find(has) {
            Some(set) => self.set = *set,
            None => {
                (self.set, self.picked) = (Set::Picked, shown);
                self.picked.push(column);
            }
        }
    }

    /// The column of that name.
    ///
    /// # Errors
    /// In words with a hint.
    pub fn named(&self, word: &str) -> Result<Column, String> {
        let found = names(&self.own).position(|n| n == word);
        let column = found.map(|at| match at.checked_sub(FIGURES.len()) {
            Some(own) => Column::Own(own),
            None => Column::Figure(Figure::ALL[at]),
        });
        column.ok_or_else(|| {
            let odd = if SETS.contains(&word) { "a set of columns, which stands alone" } else { "no column" };
            format!("`{word}` is {odd}; hint: {}", suggestion(word, names(&self.own)))
        })
    }

    /// What rows can be sorted by: `None` is the model's own order.
    ///
    /// # Errors
    /// In words with a hint.
    pub fn sort_named(&self, word: &str) -> Result<Option<Column>, String> {
        if word == ORDER { Ok(None) } else { self.named(word).map(Some) }
    }

    /// The next of what is shown, after the model's own order.
    pub fn next_sort(&self, sort: Option<Column>) -> Option<Column> {
        let shown = self.shown();
        match sort {
            None => shown.first().copied(),
            Some(column) => {
                let at = shown.iter().position(|c| *c == column);
                at.and_then(|at| shown.get(at + 1)).copied()
            }
        }
    }

    /// What rows are sorted by, in words.
    pub fn label(&self, sort: Option<Column>) -> &str {
        match sort {
            None => "model order",
            Some(Column::Figure(f)) => f.spec().label,
            Some(column) => self.heading(column),
        }
    }

    pub fn heading(&self, column: Column) -> &str {
        match column {
            Column::Figure(f) => f.heading(),
            Column::Own(i) => self.own.get(i).map_or("", |o| o.name.as_str()),
        }
    }

    pub fn width(&self, column: Column) -> u16 {
        match column {
            Column::Figure(f) => f.width(),
            // Room for its name, or for a number with its sign.
            Column::Own(_) => (self.heading(column).len() as u16).max(8),
        }
    }

    pub fn own(&self) -> &[OwnColumn] {
        &self.own
    }

    /// Takes `name = expression` and shows it; `name = off` lets it go.
    ///
    /// # Errors
    /// In words with a hint.
    pub fn define(&mut self, line: &str) -> Result<Defined, String> {
        let example = "hint: `:column ns_per_mac = p50 * 1e6 / (macs * batch)`";
        let (name, text) =
            line.split_once('=').ok_or_else(|| format!("`:column` needs a name and an expression; {example}"))?;
        if text.trim() == "off" {
            let (name, own) = (name.trim(), self.own.iter().map(|o| o.name.as_str()));
            let Some(at) = own.clone().position(|o| o == name) else {
                let there =
                    if self.own.is_empty() { example.to_owned() } else { format!("hint: {}", suggestion(name, own)) };
                return Err(format!("no column of yours is called `{name}`; {there}"));
            };
            self.forget(at);
            return Ok(Defined::Gone(at));
        }
        let column = OwnColumn::parse(name, text)?;
        let Some(at) = define(&mut self.own, column) else {
            return Err(
                "there are as many columns of yours as there may be; hint: `:column NAME = off` lets one go".to_owned()
            );
        };
        self.show(Column::Own(at));
        Ok(Defined::There)
    }

    fn forget(&mut self, at: usize) {
        self.own.remove(at);
        self.picked = self.picked.iter().filter_map(|c| after(*c, at)).collect();
        if self.picked.is_empty() && self.set == Set::Picked {
            self.set = Set::Costs;
        }
    }
}

/// What became of a column that was defined.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Defined {
    There,
    /// The one at this place is no more; later ones moved up.
    Gone(usize),
}

/// `column` after the one at `gone` was forgotten.
pub fn after(column: Column, gone: usize) -> Option<Column> {
    match column {
        Column::Own(i) if i == gone => None,
        Column::Own(i) if i > gone => Some(Column::Own(i - 1)),
        column => Some(column),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_registry_is_in_the_order_of_its_names() {
        for (i, f) in Figure::ALL.into_iter().enumerate() {
            assert_eq!((f as usize, f.spec().figure), (i, f));
            assert_eq!(Columns::default().named(f.name()), Ok(Column::Figure(f)));
            assert!(f.heading().len() <= f.width() as usize && !f.spec().label.is_empty());
        }
        for set in Set::NAMED {
            let mut drops: Vec<Figure> = set.drops().to_vec();
            assert!(set.figures().iter().all(|f| drops.contains(f)) && drops.len() == set.figures().len());
            drops.dedup();
            assert_eq!(drops.len(), set.figures().len());
        }
    }

    #[test]
    fn columns_are_picked_shown_and_forgotten() {
        let mut c = Columns::default();
        assert_eq!(c.pick(&["p50", "change", "p50"]), Ok(()));
        assert_eq!(c.shown(), [Column::Figure(P50), Column::Figure(Change)]);
        for (words, wanted) in
            [(&["p59"][..], "did you mean `p50`?"), (&["p50", "speed"], "stands alone"), (&[], "for example")]
        {
            let e = c.pick(words).expect_err("no columns");
            assert!(e.contains(wanted) && e.contains("hint: "), "{e}");
            assert_eq!(c.shown().len(), 2);
        }
        // All of what is shown, in turns with the model's order.
        let mut sort = None;
        let seen: Vec<String> = (0..3)
            .map(|_| {
                sort = c.next_sort(sort);
                c.label(sort).to_owned()
            })
            .collect();
        assert_eq!(seen, ["latency", "change", "model order"]);
        // The key goes through the sets and what was picked.
        let mut sets = Vec::new();
        for _ in 0..4 {
            c.next();
            sets.push(c.set);
        }
        assert_eq!(sets, [Set::Costs, Set::Parameters, Set::Speed, Set::Picked]);
        assert_eq!(c.define("a = p50 * 2"), Ok(Defined::There));
        assert_eq!(c.define("b=p95/p50"), Ok(Defined::There));
        assert_eq!(c.shown().last(), Some(&Column::Own(1)));
        assert_eq!(c.define("a = off"), Ok(Defined::Gone(0)));
        assert_eq!((c.shown().last(), c.heading(Column::Own(0))), (Some(&Column::Own(0)), "b"));
        assert_eq!((after(Column::Own(0), 0), after(Column::Own(2), 0)), (None, Some(Column::Own(1))));
        for odd in ["b", "p50 = 3", "x = ", "x = zz", "gone = off", "= p50"] {
            let e = c.define(odd).expect_err(odd);
            assert!(e.contains("hint: "), "{odd}: {e}");
        }
        // One that no set has comes behind what is shown.
        c.set = Set::Costs;
        c.show(Column::Figure(W4));
        assert_eq!((c.set, c.shown().len()), (Set::Picked, 7));
        c.show(Column::Figure(Noise));
        assert_eq!(c.set, Set::Parameters);
    }
}
