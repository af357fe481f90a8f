//! The machine strip, in the bottom border of the decision pane while a job runs: GPU, processors, memory.
//!
//! Not here: who reads the figures (`host/machine`). Invariants: it takes no row of its own, so nothing jumps when it comes and
//! goes; what is unknown is left out; what does not fit is left out whole, the least telling first.

use super::{Canvas, span};
use crate::config::Role;
use crate::session::Machine;
use crate::tui::num;
use crate::tui::palette::Palette;
use crate::tui::vitals::OTHERS;
use ratatui::layout::Rect;
use ratatui::text::Span;

/// From here on memory is short, per cent.
const SHORT: u64 = 90;
/// More processors than this are told by their mean alone.
const MOST_BARS: usize = 16;

pub(super) fn draw(c: &mut Canvas<'_>, area: Rect) {
    if let Some(machine) = &c.app.machine {
        let parts = parts(c.pal, machine);
        c.legend(area, parts);
    }
}

/// What is told, the most telling first, one span each.
fn parts(pal: &Palette, m: &Machine) -> Vec<Span<'static>> {
    let (dim, warn) = (pal.fg(Role::Dim), pal.fg(Role::Warn));
    let bar = |percent: u8| pal.spark(f64::from(percent) / 100.0);
    let short =
        |used: u64, total: u64| if used.saturating_mul(100) >= total.saturating_mul(SHORT) { warn } else { dim };
    let memory = |(used, total): (u64, u64)| format!("{} of {}", num::bytes(used), num::bytes(total));
    let mut out = Vec::new();
    let mut tell = |text: String, style| {
        let dot = if out.is_empty() { "" } else { pal.dot() };
        out.push(span(format!("{dot}{text}"), style));
    };
    if let Some(gpu) = &m.gpu {
        if let Some(busy) = gpu.busy_percent {
            let busy = busy.min(100) as u8;
            tell(format!("gpu {} {busy} %", bar(busy)), dim);
        }
        if let Some((used, total)) = gpu.memory_used.zip(gpu.memory_total) {
            tell(memory((used, total)), short(used, total));
        }
        if let Some(watts) = gpu.power_w {
            tell(format!("{watts:.0} W"), dim);
        }
    }
    if let Some(busy) = m.busy() {
        let bars: String = match m.processors.len() {
            0..=MOST_BARS => m.processors.iter().map(|p| bar(*p)).collect(),
            n => format!("{n} x"),
        };
        tell(format!("cpu {bars} {busy} %"), dim);
    }
    if let Some(others) = m.others.filter(|o| *o >= OTHERS) {
        tell(format!("others {others} %"), warn);
    }
    if let Some((used, total)) = m.memory {
        tell(format!("ram {}", memory((used, total))), short(used, total));
    }
    if let Some(mhz) = m.mhz {
        tell(format!("{:.1} GHz", f64::from(mhz) / 1e3), dim);
    }
    if let Some(gpu) = &m.gpu {
        let clock = gpu.sm_mhz.map(|mhz| format!("gpu {mhz} MHz"));
        let heat = gpu.celsius.map(|t| format!("gpu {t}{}", pal.glyph(" °C", " C")));
        clock.into_iter().chain(heat).for_each(|text| tell(text, dim));
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::profile::Reading;

    fn said(m: &Machine, ascii: bool) -> String {
        let pal = Palette { ascii, ..Palette::default() };
        parts(&pal, m).iter().map(|s| s.content.clone()).collect()
    }

    #[test]
    fn what_is_known_is_told_and_what_is_not_is_left_out() {
        assert_eq!(said(&Machine::default(), false), "");
        let cpu = Machine {
            processors: vec![12, 100],
            others: Some(3),
            memory: Some((4_100_000_000, 33_000_000_000)),
            mhz: Some(2900),
            gpu: None,
        };
        assert_eq!(said(&cpu, false), "cpu ▂█ 56 % · ram 4.10 GB of 33.00 GB · 2.9 GHz");
        let disturbed = Machine { others: Some(40), processors: vec![50; 64], mhz: None, memory: None, gpu: None };
        assert_eq!(said(&disturbed, true), "cpu 64 x 50 % | others 40 %");
        let gpu = Reading {
            power_w: Some(311.7),
            busy_percent: Some(97),
            memory_used: Some(12_400_000_000),
            memory_total: Some(80_000_000_000),
            celsius: Some(61),
            ..Reading::default()
        };
        let text = said(&Machine { gpu: Some(gpu), processors: vec![8, 8], ..Machine::default() }, true);
        assert_eq!(text, "gpu # 97 % | 12.40 GB of 80.00 GB | 312 W | cpu .. 8 % | gpu 61 C");
    }

    #[test]
    fn short_memory_and_other_load_stand_out() {
        let pal = Palette::default();
        let m = Machine { memory: Some((95, 100)), others: Some(OTHERS), processors: vec![20], ..Machine::default() };
        let warned: Vec<bool> = parts(&pal, &m).iter().map(|s| s.style == pal.fg(Role::Warn)).collect();
        assert_eq!(warned, [false, true, true]);
    }
}
