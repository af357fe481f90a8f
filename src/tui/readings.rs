//! What rows have of a column: of figures, and of expressions over them.
//!
//! Pure. Invariants: what was not measured is nothing, never zero; a block has a figure only where its rows' add up to one: medians do, a 95th
//! percentile or an intensity does not.

use super::app::App;
use super::columns::{Column, Figure};
use super::list::RowRef;
use super::num;
use super::pin::Change;
use super::table::{Figures, Layer};
use crate::config::columns::{BATCH, FIGURES};
use crate::graph::MacConvention;
use crate::plan::{Action, Target};
use crate::quant::Precision;

/// A column's figures, by row.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Readings {
    pub blocks: Vec<Option<f64>>,
    pub layers: Vec<Option<f64>>,
}

impl Readings {
    pub fn of(&self, row: RowRef) -> Option<f64> {
        match row {
            RowRef::Block(i) => self.blocks.get(i).copied().flatten(),
            RowRef::Layer(i) => self.layers.get(i).copied().flatten(),
        }
    }
}

/// What both layers and blocks have of a figure; `None` too where it is of layers alone.
fn summed(figure: Figure, f: &Figures, conv: MacConvention) -> Option<f64> {
    match figure {
        Figure::P50 => f.p50,
        Figure::Share => f.share,
        Figure::Memory => Some(f.bytes as f64),
        Figure::Macs => Some(f.macs.get(conv) as f64),
        Figure::Params => Some(f.params as f64),
        Figure::Sens => f.sens,
        Figure::Activations => f.activations,
        Figure::Weight => f.weights.norm(),
        Figure::Zeros => f.weights.zeros(),
        Figure::Rank => f.weights.rank(),
        Figure::Gradient => f.weights.gradient(),
        Figure::Importance => f.weights.importance(),
        Figure::Noise => f.weights.noise(),
        Figure::P95 | Figure::Intensity | Figure::Change | Figure::Error | Figure::Int8 | Figure::W4 => None,
    }
}

impl App {
    /// What every row has of `column`.
    pub fn readings(&self, column: Column) -> Readings {
        Readings {
            blocks: (0..self.table.blocks.len()).map(|b| self.reading(column, RowRef::Block(b))).collect(),
            layers: (0..self.table.layers.len()).map(|i| self.reading(column, RowRef::Layer(i))).collect(),
        }
    }

    /// What a row has of `column`; nothing of a row that is gone.
    pub fn reading(&self, column: Column, row: RowRef) -> Option<f64> {
        if matches!(row, RowRef::Layer(i) if self.table.layers.get(i).is_none_or(|l| l.gone)) {
            return None;
        }
        match column {
            Column::Figure(figure) => self.figure(figure, row),
            Column::Own(i) => {
                let own = self.columns.own().get(i)?;
                let figure = |name: &str| match FIGURES.iter().position(|f| f.name == name) {
                    Some(at) => self.figure(Figure::ALL[at], row),
                    None if name == BATCH.name => self.table.whole.map(|(_, batch, _, _)| batch as f64),
                    None => None,
                };
                own.expression.of(&figure)
            }
        }
    }

    /// How a row's time changed against what is pinned.
    pub fn change(&self, row: RowRef) -> Option<Change> {
        let pin = self.baseline()?;
        match row {
            RowRef::Block(b) => pin.block(&self.table, b),
            RowRef::Layer(i) => pin.layer(&self.table, i),
        }
    }

    fn figure(&self, figure: Figure, row: RowRef) -> Option<f64> {
        let fig = row.figures(&self.table)?;
        if figure == Figure::Change {
            return self.change(row).map(|c| c.part);
        }
        let layer = match row {
            RowRef::Layer(i) => self.table.layers.get(i),
            RowRef::Block(_) => None,
        };
        match (figure, layer) {
            (Figure::P95, Some(l)) => l.fig.p50.map(|_| l.p95),
            (Figure::Intensity, Some(l)) => l.row.as_ref().map(|r| r.intensity).filter(|i| i.is_finite() && *i > 0.0),
            (Figure::Error, Some(l)) => self.error(l, self.rounds_to(l)?),
            (Figure::Int8, Some(l)) => self.error(l, Precision::Int8),
            (Figure::W4, Some(l)) => self.error(l, Precision::W4),
            _ => summed(figure, &fig, self.settings.mac_convention),
        }
    }

    /// How far `layer`'s weights are off in `precision`, where that was looked up: a part of their norm.
    fn error(&self, layer: &Layer, precision: Precision) -> Option<f64> {
        let all = self.rounding.get(&layer.name)?;
        all.iter().find(|(p, _)| *p == precision).map(|(_, e)| f64::from(*e))
    }

    /// Whether a row with weights lacks an error that could be looked up.
    pub fn unknown_errors(&self, held: &Readings) -> bool {
        let lacks = |(i, l): (usize, &Layer)| {
            l.weighty && !l.gone && held.of(RowRef::Layer(i)).is_none() && !self.rounding.contains_key(&l.name)
        };
        self.table.layers.iter().enumerate().any(lacks)
    }

    /// A reading of `column` as text, without its unit where the heading has that.
    pub fn told(&self, column: Column, v: f64) -> String {
        let Column::Figure(figure) = column else { return num::any(v) };
        match figure {
            Figure::P50 | Figure::P95 => num::ms(v),
            Figure::Memory | Figure::Macs | Figure::Activations => num::scaled(v, 1e6),
            Figure::Params => num::count(v as u64),
            Figure::Weight | Figure::Intensity => num::scaled(v, 1.0),
            // The title has the unit, so that a mark has room.
            Figure::Zeros | Figure::Rank | Figure::Error | Figure::Int8 | Figure::W4 => {
                num::percent(v).trim_end_matches('%').to_owned()
            }
            Figure::Gradient | Figure::Importance | Figure::Sens => num::fine(v),
            Figure::Noise => num::about(v),
            Figure::Share => num::percent(v),
            Figure::Change => format!("{}%", num::signed(100.0 * v, if v.abs() < 9.995 { 1 } else { 0 })),
        }
    }

    /// The precision that is planned for `layer`, where one is.
    pub(super) fn rounds_to(&self, layer: &Layer) -> Option<Precision> {
        match self.shown(&Target::Layer(layer.name.clone())).action {
            Action::Precision { precision } => Some(precision),
            _ => None,
        }
    }
}
