//! Compact text tables for prompts, cut to fit: the least important rows go first and the cut is stated. Pure.

use crate::words::counted;

/// A row with its weight (its share of what the table is about, 0 to 1); weightier rows come first.
pub struct Row {
    pub weight: f64,
    pub text: String,
}

/// Title, header and as many rows as fit into `room` characters, weightiest first, with a last line saying what was left
/// out. Without rows, nothing.
pub fn table(title: &str, header: &str, mut rows: Vec<Row>, room: usize) -> String {
    if rows.is_empty() {
        return String::new();
    }
    rows.sort_by(|a, b| b.weight.total_cmp(&a.weight));
    let mut out = format!("\n## {title}\n{header}\n");
    let cut_line = 90;
    let mut used = out.chars().count() + cut_line;
    let mut shown = 0;
    for row in &rows {
        let size = row.text.chars().count() + 1;
        if used + size > room && shown > 0 {
            break;
        }
        out.push_str(&row.text);
        out.push('\n');
        used += size;
        shown += 1;
    }
    let rest = rows.get(shown..).unwrap_or_default();
    if !rest.is_empty() {
        let share: f64 = rest.iter().map(|r| r.weight.max(0.0)).sum();
        let together = if share > 0.0 { format!(", together {:.1} %", 100.0 * share) } else { String::new() };
        out.push_str(&format!("({} left out for room{together})\n", counted(rest.len(), "lesser row")));
    }
    out
}

/// A number with about three significant digits, no exponent.
pub fn short(v: f64) -> String {
    let a = v.abs();
    let digits = match a {
        a if !a.is_finite() => return "?".into(),
        a if a >= 100.0 => 0,
        a if a >= 10.0 => 1,
        a if a >= 1.0 => 2,
        _ => 3,
    };
    let s = format!("{v:.digits$}");
    if s.contains('.') { s.trim_end_matches('0').trim_end_matches('.').to_owned() } else { s }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_least_important_rows_go_first() {
        let rows = || (0..50).map(|i| Row { weight: i as f64 / 1225.0, text: format!("row {i} {}", "x".repeat(20)) });
        let all = table("t", "h", rows().collect(), 100_000);
        assert!(all.starts_with("\n## t\nh\nrow 49") && all.contains("row 0 ") && !all.contains("left out"));
        let cut = table("t", "h", rows().collect(), 500);
        assert!(cut.chars().count() <= 500, "{}", cut.chars().count());
        assert!(cut.contains("row 49") && !cut.contains("row 10 "), "{cut}");
        assert!(cut.trim_end().ends_with(" %)"), "{cut}");
        assert_eq!(table("t", "h", vec![], 500), "");
    }

    #[test]
    fn numbers_are_short() {
        for (v, s) in
            [(0.0, "0"), (0.1234, "0.123"), (-1.5, "-1.5"), (12.34, "12.3"), (1234.5, "1234"), (f64::NAN, "?")]
        {
            assert_eq!(short(v), s);
        }
    }
}
