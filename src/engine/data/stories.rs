//! The synthetic text: short stories about who is where, holds what and has how many, told from a seed.
//!
//! What a sentence says depends on those before it: names (some made up of syllables, so that only copying tells them), places, a coloured
//! thing that changes hands, a number that is counted up and down, verbs and pronouns that agree. Not here: tokens and windows (`text`).
//! Invariant: story `i` of a split is a function of (split, `i`) alone and the same bytes on every machine: one ChaCha8 stream a
//! story and integer arithmetic; only what a choice is worth ([`Story::nats`]) is a float, and nothing depends on that.

use super::synthetic::Split;
use rand_chacha::ChaCha8Rng;
use rand_chacha::rand_core::{RngCore, SeedableRng};

const SEED: u64 = 0x7061_7269_6e67_0002;

/// A story as one paragraph.
#[derive(Debug, Clone, PartialEq)]
pub struct Story {
    pub text: String,
    /// −ln of the probability of the choices that it was made by: what its text is worth at most.
    pub nats: f64,
}

impl Split {
    /// Stories in the split as a set; [`tell`] goes on.
    pub fn stories(self) -> usize {
        match self {
            Split::Train => 4_000,
            Split::Calib => 300,
            Split::Eval => 600,
        }
    }
}

/// Story `index` of `split`. Indices past [`Split::stories`] are further stories of the same kind.
pub fn tell(split: Split, index: u64) -> Story {
    let mut seed = [0u8; 32];
    for (part, v) in seed.chunks_exact_mut(8).zip([SEED, split.stream(), index, 0]) {
        part.copy_from_slice(&v.to_le_bytes());
    }
    Teller::new(Dice { rng: ChaCha8Rng::from_seed(seed), nats: 0.0 }).story()
}

/// The first `count` stories of `split`.
pub fn first(split: Split, count: usize) -> impl Iterator<Item = Story> {
    (0..count as u64).map(move |i| tell(split, i))
}

const SHE: [&str; 8] = ["Anna", "Clara", "Eva", "Ivy", "Lucy", "Mia", "Nora", "Ruth"];
const HE: [&str; 8] = ["Ben", "Finn", "Hugo", "Leo", "Max", "Paul", "Sam", "Tom"];
const ONSETS: [&str; 10] = ["B", "D", "F", "G", "K", "L", "M", "R", "T", "V"];
const VOWELS: [&str; 5] = ["a", "e", "i", "o", "u"];
/// Each with the word that says somebody is there.
const PLACES: [(&str, &str); 10] = [
    ("in", "garden"),
    ("in", "kitchen"),
    ("in", "forest"),
    ("in", "barn"),
    ("at", "market"),
    ("at", "school"),
    ("by", "river"),
    ("by", "lake"),
    ("on", "hill"),
    ("on", "bridge"),
];
const THINGS: [&str; 10] = ["ball", "book", "hat", "lamp", "kite", "drum", "key", "cup", "coat", "rope"];
const LOOKS: [&str; 8] = ["red", "blue", "green", "yellow", "white", "old", "orange", "empty"];
const COUNTED: [[&str; 2]; 6] = [
    ["apple", "apples"],
    ["nut", "nuts"],
    ["berry", "berries"],
    ["coin", "coins"],
    ["egg", "eggs"],
    ["stone", "stones"],
];
const NUMBERS: [&str; 10] = ["no", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine"];
/// How one goes, how several do.
const WAYS: [[&str; 2]; 3] = [["goes", "go"], ["walks", "walk"], ["runs", "run"]];
const WEATHER: [&str; 5] = ["It is cold", "It is warm", "It is raining", "It is getting dark", "The wind is strong"];

/// Random choices, and what they are worth.
struct Dice {
    rng: ChaCha8Rng,
    nats: f64,
}

impl Dice {
    fn below(&mut self, n: usize) -> usize {
        self.nats += (n.max(1) as f64).ln();
        ((u64::from(self.rng.next_u32()) * n as u64) >> 32) as usize
    }

    fn pick<T: Copy>(&mut self, all: &[T]) -> T {
        all[self.below(all.len())]
    }

    /// One of `all`, each as likely as its number says.
    fn weighted<T: Copy>(&mut self, all: &[(u32, T)]) -> T {
        let total: u32 = all.iter().map(|(w, _)| w).sum();
        let mut at = ((u64::from(self.rng.next_u32()) * u64::from(total)) >> 32) as u32;
        let chosen = all.iter().find(|(w, _)| {
            let here = at < *w;
            at = at.saturating_sub(*w);
            here
        });
        let (w, what) = *chosen.unwrap_or(&all[all.len() - 1]);
        self.nats += (f64::from(total) / f64::from(w.max(1))).ln();
        what
    }
}

struct Person {
    name: String,
    she: bool,
    place: usize,
}

impl Person {
    fn pronoun(&self) -> &'static str {
        if self.she { "she" } else { "he" }
    }
}

/// A name that nobody knows.
fn syllables(dice: &mut Dice) -> String {
    let count = 2 + dice.below(2);
    let name: String = (0..count).map(|_| format!("{}{}", dice.pick(&ONSETS), dice.pick(&VOWELS))).collect();
    let (head, rest) = name.split_at(1);
    format!("{head}{}", rest.to_lowercase())
}

/// What may happen next.
#[derive(Clone, Copy)]
enum Event {
    Go,
    GoTogether,
    Hand,
    AskHolder,
    AskThing,
    AskPerson,
    Find,
    Lose,
    Company,
    Boast,
    Weather,
}

/// A story while it is told: what holds now, and the sentences so far.
struct Teller {
    dice: Dice,
    people: Vec<Person>,
    /// Who has the thing, how it looks, and what it is.
    holder: usize,
    look: &'static str,
    thing: &'static str,
    /// Who counts, what, and how many there are.
    owner: usize,
    counted: [&'static str; 2],
    number: usize,
    told: Vec<String>,
}

impl Teller {
    fn new(mut dice: Dice) -> Teller {
        let mut people = Vec::<Person>::new();
        let (count, place) = (2 + dice.below(2), dice.below(PLACES.len()));
        for _ in 0..count {
            let she = dice.below(2) == 0;
            let made_up = dice.weighted(&[(1, true), (2, false)]);
            let free = |name: &str| people.iter().all(|p| p.name != name);
            let name = if made_up {
                loop {
                    let name = syllables(&mut dice);
                    if free(&name) {
                        break name;
                    }
                }
            } else {
                let all: Vec<&str> = if she { SHE } else { HE }.into_iter().filter(|name| free(name)).collect();
                dice.pick(&all).to_owned()
            };
            people.push(Person { name, she, place });
        }
        let (holder, owner) = (dice.below(count), dice.below(count));
        let (look, thing) = (dice.pick(&LOOKS), dice.pick(&THINGS));
        let (counted, number) = (dice.pick(&COUNTED), 1 + dice.below(6));
        Teller { dice, people, holder, look, thing, owner, counted, number, told: Vec::new() }
    }

    fn story(mut self) -> Story {
        self.opening();
        for _ in 0..4 + self.dice.below(5) {
            self.event();
        }
        self.ending();
        Story { text: self.told.join(" "), nats: self.dice.nats }
    }

    fn say(&mut self, sentence: String) {
        let (head, rest) = sentence.split_at(1);
        self.told.push(format!("{}{rest}", head.to_uppercase()));
    }

    fn name(&self, person: usize) -> &str {
        &self.people[person].name
    }

    /// Where somebody is: `by the river`.
    fn at(&self, person: usize) -> String {
        let (at, place) = PLACES[self.people[person].place];
        format!("{at} the {place}")
    }

    fn the_thing(&self) -> String {
        format!("the {} {}", self.look, self.thing)
    }

    /// `two apples`.
    fn so_many(&self, n: usize) -> String {
        format!("{} {}", NUMBERS[n], self.counted[usize::from(n != 1)])
    }

    /// Somebody else at the same place, if there is one.
    fn beside(&mut self, person: usize) -> Option<usize> {
        let all: Vec<usize> = self.together(person);
        (!all.is_empty()).then(|| self.dice.pick(&all))
    }

    fn together(&self, person: usize) -> Vec<usize> {
        let here = self.people[person].place;
        (0..self.people.len()).filter(|&i| i != person && self.people[i].place == here).collect()
    }

    fn opening(&mut self) {
        for i in 0..self.people.len() {
            let p = &self.people[i];
            let known = SHE.contains(&p.name.as_str()) || HE.contains(&p.name.as_str());
            if !known {
                let line = format!("there is a {} named {}.", if p.she { "girl" } else { "boy" }, p.name);
                self.say(line);
            }
        }
        let names: Vec<&str> = self.people.iter().map(|p| p.name.as_str()).collect();
        let (last, others) = names.split_last().map_or(("", String::new()), |(l, o)| (*l, o.join(", ")));
        let line = format!("{others} and {last} are {}.", self.at(0));
        self.say(line);
        let article = if self.look.starts_with(['a', 'e', 'i', 'o', 'u']) { "an" } else { "a" };
        let holds = format!("{} has {article} {} {}.", self.name(self.holder), self.look, self.thing);
        let counts = format!("{} has {}.", self.name(self.owner), self.so_many(self.number));
        self.say(holds);
        self.say(counts);
    }

    fn event(&mut self) {
        let held_beside = !self.together(self.holder).is_empty();
        let (more, less) = (self.number < 9, self.number > 0);
        let pairs = (0..self.people.len()).any(|i| !self.together(i).is_empty());
        let able = |yes: bool, weight: u32| if yes { weight } else { 0 };
        let all = [
            (4, Event::Go),
            (able(pairs, 2), Event::GoTogether),
            (able(held_beside, 5), Event::Hand),
            (3, Event::AskHolder),
            (2, Event::AskThing),
            (3, Event::AskPerson),
            (able(more, 3), Event::Find),
            (able(less, 3), Event::Lose),
            (2, Event::Company),
            (1, Event::Boast),
            (1, Event::Weather),
        ];
        match self.dice.weighted(&all) {
            Event::Go => {
                let who = self.dice.below(self.people.len());
                self.go(&[who]);
            }
            Event::GoTogether => {
                let all: Vec<usize> = (0..self.people.len()).filter(|&i| !self.together(i).is_empty()).collect();
                let who = self.dice.pick(&all);
                if let Some(other) = self.beside(who) {
                    self.go(&[who, other]);
                }
            }
            Event::Hand => {
                let Some(to) = self.beside(self.holder) else { return };
                let (giver, taker) = (self.name(self.holder).to_owned(), self.name(to).to_owned());
                let line = match self.dice.below(2) {
                    0 => format!("{giver} gives {} to {taker}.", self.the_thing()),
                    _ => format!("{taker} takes {} from {giver}.", self.the_thing()),
                };
                self.holder = to;
                self.say(line);
            }
            Event::AskHolder => self.say(format!("who has the {}? {} has it.", self.thing, self.name(self.holder))),
            Event::AskThing => self.say(format!("where is the {}? It is {}.", self.thing, self.at(self.holder))),
            Event::AskPerson => {
                let who = self.dice.below(self.people.len());
                let pronoun = if self.people[who].she { "She" } else { "He" };
                self.say(format!("where is {}? {pronoun} is {}.", self.name(who), self.at(who)));
            }
            Event::Find => {
                let n = 1 + self.dice.below((9 - self.number).min(3));
                self.number += n;
                self.count("finds", n, " more");
            }
            Event::Lose => {
                let n = 1 + self.dice.below(self.number.min(3));
                self.number -= n;
                let verb = self.dice.pick(&["loses", "hides"]);
                self.count(verb, n, "");
            }
            Event::Company => {
                let who = self.dice.below(self.people.len());
                let line = match self.beside(who) {
                    Some(other) => format!("{} smiles at {}.", self.name(who), self.name(other)),
                    None => format!("{} is alone {}.", self.name(who), self.at(who)),
                };
                self.say(line);
            }
            Event::Boast => {
                self.told.push(format!("\"I have {},\" says {}.", self.the_thing(), self.name(self.holder)))
            }
            Event::Weather => {
                let weather = self.dice.pick(&WEATHER);
                self.say(format!("{weather} today."));
            }
        }
    }

    /// These, who are at one place, go to another.
    fn go(&mut self, who: &[usize]) {
        let from = who.first().map_or(0, |&i| self.people[i].place);
        let to = (from + 1 + self.dice.below(PLACES.len() - 1)) % PLACES.len();
        let verb = self.dice.pick(&WAYS)[usize::from(who.len() > 1)];
        let names: Vec<&str> = who.iter().map(|&i| self.name(i)).collect();
        let line = format!("{} {verb} to the {}.", names.join(" and "), PLACES[to].1);
        who.iter().for_each(|&i| self.people[i].place = to);
        self.say(line);
    }

    /// What the owner did with `n` of what is counted, and how many there are now.
    fn count(&mut self, verb: &str, n: usize, more: &str) {
        let [one, many] = self.counted;
        let these = if n == 1 { one } else { many };
        let p = &self.people[self.owner];
        let line = format!(
            "{} {verb} {}{more} {these}. Now {} has {}.",
            p.name,
            NUMBERS[n],
            p.pronoun(),
            self.so_many(self.number)
        );
        self.say(line);
    }

    fn ending(&mut self) {
        let (holder, owner) = (self.name(self.holder), self.name(self.owner));
        let (thing, many) = (self.the_thing(), self.so_many(self.number));
        let line = match self.holder == self.owner {
            true => format!("in the end {holder} has {thing} and {many}."),
            false => format!("in the end {holder} has {thing} and {owner} has {many}."),
        };
        self.say(line);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::HashSet;

    #[test]
    fn stories_are_what_they_always_were() {
        let mut hash = blake3::Hasher::new();
        for split in [Split::Train, Split::Calib, Split::Eval] {
            first(split, 200).for_each(|s| _ = hash.update(s.text.as_bytes()));
        }
        assert_eq!(
            hash.finalize().to_hex().as_str(),
            "a81ba366f7830a2a547fc5d721b618820e1a4dd8d5ac1699db9f5f7d1eb18b8c"
        );
    }

    #[test]
    fn splits_share_no_story() {
        let of = |split: Split| first(split, 600).map(|s| s.text).collect::<HashSet<_>>();
        let (train, calib, eval) = (of(Split::Train), of(Split::Calib), of(Split::Eval));
        assert_eq!([&train, &calib, &eval].map(HashSet::len), [600; 3]);
        assert!(train.is_disjoint(&eval) && calib.is_disjoint(&eval) && train.is_disjoint(&calib));
    }

    /// The answers that a story gives hold by what it told before.
    #[test]
    fn what_is_said_follows_from_what_was_said() {
        let (mut asked, mut summed) = (0, 0);
        for story in first(Split::Eval, 300) {
            let (mut holder, mut number) = (String::new(), 0);
            let clean = story.text.replace("\"I have", "I have").replace(",\"", "");
            for sentence in clean.split_inclusive(['.', '?']).map(str::trim) {
                let words: Vec<&str> = sentence.trim_end_matches(['.', '?']).split(' ').collect();
                let count = |word: &str| NUMBERS.iter().position(|n| *n == word);
                match words[..] {
                    [name, "has", "it"] => {
                        assert_eq!(name, holder, "{}", story.text);
                        asked += 1;
                    }
                    [name, "has", "a" | "an", ..] => holder = name.to_owned(),
                    [_, "gives", .., "to", name] => holder = name.to_owned(),
                    [name, "takes", ..] => holder = name.to_owned(),
                    [_, "finds", n, "more", _] => number += count(n).unwrap(),
                    [_, "loses" | "hides", n, _] => number -= count(n).unwrap(),
                    ["Now", "she" | "he", "has", n, _] => {
                        assert_eq!(count(n), Some(number), "{}", story.text);
                        summed += 1;
                    }
                    [_, "has", n, _] if count(n).is_some() => number = count(n).unwrap(),
                    _ => {}
                }
            }
        }
        assert!(asked > 100 && summed > 100, "{asked} {summed}");
    }

    #[test]
    fn choices_are_worth_what_they_leave_open() {
        let mut dice = Dice { rng: ChaCha8Rng::from_seed([7; 32]), nats: 0.0 };
        let mut seen = [0; 2];
        (0..4000).for_each(|_| seen[dice.weighted(&[(0, 1), (3, 0), (1, 1)])] += 1);
        assert!((900..1100).contains(&seen[1]), "{seen:?}");
        let want = f64::from(seen[0]) * (4f64 / 3.0).ln() + f64::from(seen[1]) * 4f64.ln();
        assert!((dice.nats - want).abs() < 1e-9 * want, "{} {want}", dice.nats);
    }
}
