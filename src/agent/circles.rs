//! Telling an answer that goes round in circles, as small models do until their context is full.
//!
//! Not here: what follows (`answer`).

/// Characters that are looked at, and how many repetitions of whatever they hold mean a circle: no table, list or drawing of a proposal
/// says the very same so often without a change, and nobody says a whole page four times.
const WINDOWS: [(usize, usize); 4] = [(2048, 8), (8192, 8), (32_768, 4), (131_072, 4)];

/// The end of an answer.
#[derive(Debug, Default)]
pub struct Circles {
    tail: Vec<char>,
    /// Characters since a window was looked at.
    fresh: [usize; WINDOWS.len()],
}

impl Circles {
    /// Takes what was said next. Does it only repeat what stands before?
    pub fn push(&mut self, said: &str) -> bool {
        let before = self.tail.len();
        self.tail.extend(said.chars());
        let more = self.tail.len() - before;
        let most = WINDOWS[WINDOWS.len() - 1].0;
        if self.tail.len() > 2 * most {
            self.tail.drain(..self.tail.len() - most);
        }
        WINDOWS.iter().zip(&mut self.fresh).any(|((n, times), fresh)| {
            *fresh += more;
            // Each character is looked at a few times in all.
            if *fresh < n / 4 {
                return false;
            }
            *fresh = 0;
            let last = self.tail.len().checked_sub(*n).map(|from| &self.tail[from..]);
            last.is_some_and(|last| period(last) <= n / times)
        })
    }
}

/// The shortest length after which `text` repeats itself throughout: its own where it does not (Knuth, Morris and Pratt's borders).
fn period(text: &[char]) -> usize {
    let mut border = vec![0usize; text.len()];
    for i in 1..text.len() {
        let mut k = border[i - 1];
        while k > 0 && text[i] != text[k] {
            k = border[k - 1];
        }
        border[i] = k + usize::from(text[i] == text[k]);
    }
    text.len() - border.last().copied().unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Where `text`, in pieces of a token's size, is found to go in circles.
    fn found(text: &str) -> Option<usize> {
        let (mut circles, mut said) = (Circles::default(), 0);
        let chars: Vec<char> = text.chars().collect();
        chars.chunks(5).find_map(|piece| {
            said += piece.len();
            circles.push(&piece.iter().collect::<String>()).then_some(said)
        })
    }

    #[test]
    fn what_repeats_is_found_soon_and_what_only_resembles_is_not() {
        let sentence = "The model is expensive and insensitive, so that it can be pruned. ";
        let at = found(&format!("First, I look at the table.\n{}", sentence.repeat(400))).unwrap();
        assert!(at <= 2048 + 1024, "{at}");
        // A whole proposal again and again.
        let list: String = (0..12).map(|i| format!("{{\"target\": \"layer{i}.conv1\", \"ratio\": 0.25}},\n")).collect();
        assert!(list.len() > 300 && found(&list.repeat(60)).is_some());
        assert!(found(&"\n".repeat(4000)).is_some());
        // Pages of tens of thousands of characters.
        let page: String =
            (0..500).map(|i| format!("{{\"target\": \"blocks.{i}.mlp\", \"ratio\": 0.25}},\n")).collect();
        assert!(
            page.len() > 20_000
                && found(&page.repeat(9)).is_some_and(|at| at < 200_000)
                && found(&page.repeat(3)).is_none()
        );
        // A long proposal says nearly the same of every layer.
        let long: String =
            (0..2000).map(|i| format!("{{\"target\": \"blocks.{i}.mlp\", \"ratio\": 0.25}},\n")).collect();
        assert_eq!(found(&long), None);
        let thought: String = (0..300).map(|i| format!("Step {i}: {sentence}")).collect();
        assert_eq!(found(&thought), None);
        assert_eq!(found(&sentence.repeat(20)), None);
    }

    #[test]
    fn periods_are_the_shortest() {
        let of = |text: &str| period(&text.chars().collect::<Vec<_>>());
        assert_eq!((of("abcabcab"), of("aaaa"), of("abcd"), of("abab")), (3, 1, 4, 2));
    }
}
