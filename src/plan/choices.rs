//! One choice of each of many, so that all together are no larger than there is room, with the least harm; harm adds up.
//!
//! Solved by its Lagrangian: every price of a byte has a best choice for each on its own, and of all prices the one is taken that fits; what
//! is left over goes to whoever gains the most of it. How good that can be at best is said besides. Tested where it is used (`bits`, `cuts`).

/// What could be taken.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Choice {
    pub size: u64,
    pub harm: f64,
}

/// What was taken.
#[derive(Debug, Clone, PartialEq)]
pub struct Taken {
    /// Of each, an index into its choices.
    pub taken: Vec<usize>,
    pub size: u64,
    pub harm: f64,
    /// Nothing of that size has less harm than this: what the price says.
    pub least: f64,
}

impl Taken {
    fn of(all: &[Vec<Choice>], taken: Vec<usize>, least: f64) -> Taken {
        let each = || all.iter().zip(&taken).map(|(choices, &i)| choices[i]);
        let (size, harm) = (each().map(|c| c.size).sum(), each().map(|c| c.harm).sum());
        Taken { taken, size, harm, least }
    }
}

/// The choices, one of each of `all`, that take at most `room` with the least harm; `None` where not even the smallest ones fit.
pub fn allocate(all: &[Vec<Choice>], room: u64) -> Option<Taken> {
    let at = |price: f64| -> Vec<usize> {
        let best = |choices: &Vec<Choice>| {
            let worth = |c: &Choice| c.harm + price * c.size as f64;
            let each = choices.iter().enumerate();
            each.min_by(|a, b| worth(a.1).total_cmp(&worth(b.1)).then(a.1.size.cmp(&b.1.size))).map_or(0, |(i, _)| i)
        };
        all.iter().map(best).collect()
    };
    let free = Taken::of(all, at(0.0), 0.0);
    if free.size <= room {
        return Some(Taken { least: free.harm, ..free });
    }
    // From a price at which nothing but size counts, down to the lowest at which all fits.
    let (mut low, mut high) = (0.0, 1e-300);
    let mut fits = loop {
        let found = Taken::of(all, at(high), 0.0);
        if found.size <= room {
            break found;
        }
        if high > 1e300 {
            return smallest(all, room);
        }
        low = high;
        high *= 1e3;
    };
    for _ in 0..200 {
        let middle = 0.5 * (low + high);
        if middle <= low || middle >= high {
            break;
        }
        let found = Taken::of(all, at(middle), 0.0);
        if found.size <= room { (high, fits) = (middle, found) } else { low = middle }
    }
    // What every choice of that size has at least (Lagrangian duality).
    let least = fits.harm - high * (room - fits.size) as f64;
    Some(Taken { least: least.max(0.0), ..filled(all, room, fits) })
}

/// Everything at its smallest: where prices have lost their meaning.
fn smallest(all: &[Vec<Choice>], room: u64) -> Option<Taken> {
    let least = |choices: &Vec<Choice>| {
        let each = choices.iter().enumerate();
        each.min_by(|a, b| a.1.size.cmp(&b.1.size).then(a.1.harm.total_cmp(&b.1.harm))).map_or(0, |(i, _)| i)
    };
    let found = Taken::of(all, all.iter().map(least).collect(), 0.0);
    (found.size <= room).then(|| filled(all, room, found))
}

/// Gives what is left of `room` to whoever gains the most by it for its size, as long as somebody does.
fn filled(all: &[Vec<Choice>], room: u64, mut taken: Taken) -> Taken {
    loop {
        let left = room - taken.size;
        let mut best: Option<(f64, usize, usize)> = None;
        for (w, choices) in all.iter().enumerate() {
            let now = choices[taken.taken[w]];
            for (i, c) in choices.iter().enumerate() {
                let (gain, more) = (now.harm - c.harm, c.size.saturating_sub(now.size));
                if gain > 0.0 && more <= left {
                    let worth = gain / more.max(1) as f64;
                    if best.is_none_or(|(b, ..)| worth > b) {
                        best = Some((worth, w, i));
                    }
                }
            }
        }
        let Some((_, w, i)) = best else { return taken };
        taken.taken[w] = i;
        taken = Taken::of(all, taken.taken, taken.least);
    }
}
