//! What a round's model answers otherwise than the original, item by item: plain data, as the host tells it to whoever looks.
//!
//! Not here: how answers are kept and compared (`host/compute/answers`, `changed`). Never part of the state: it is of the evaluation data,
//! which planning must not see.

use super::calibration::Calibration;
use serde::{Deserialize, Serialize};

/// Items that are told at a time.
pub const PAGE: usize = 24;

/// Which of the items that changed.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Way {
    /// Right before and wrong now; of tasks without right and wrong, scored lower.
    #[default]
    Lost,
    /// The reverse.
    Gained,
}

impl Way {
    pub fn other(self) -> Way {
        match self {
            Way::Lost => Way::Gained,
            Way::Gained => Way::Lost,
        }
    }
}

/// What is asked: a page of one round's items.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct WhatChanged {
    pub round: u32,
    pub way: Way,
    /// The first item of the page in their order.
    pub from: usize,
}

/// What came of it.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct Changed {
    pub asked: WhatChanged,
    /// Why nothing can be told, in words.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub why: Option<String>,
    /// Items that both models answered.
    pub seen: usize,
    pub lost: usize,
    pub gained: usize,
    /// The page: those that fell (rose) most first.
    pub items: Vec<Item>,
    /// By class: how many there are, and how many of them were lost and gained. Empty for tasks without classes.
    pub classes: Vec<[u32; 3]>,
    /// Classes that are taken for others, those first where that changed most; at most [`PAGE`].
    pub taken: Vec<Taken>,
    /// How far right classes lead; `None` for tasks without classes.
    pub leads: Option<Leads>,
    /// How sure both are against how often they are right; `None` for tasks without classes.
    #[serde(default)]
    pub calibration: Option<Calibration>,
    /// Items are texts that models foretell token by token: what they make of each can be asked ([`super::WhatTokens`]).
    #[serde(default)]
    pub by_token: bool,
}

impl Changed {
    /// Nothing but why nothing can be told.
    pub fn untold(asked: WhatChanged, why: String) -> Changed {
        Changed { asked, why: Some(why), ..Changed::default() }
    }
}

/// One item before and after.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct Item {
    /// In the evaluation data.
    pub index: usize,
    /// Of data that lies in files.
    #[serde(default)]
    pub name: Option<String>,
    #[serde(default)]
    pub label: Option<u32>,
    pub before: Answer,
    pub after: Answer,
    #[serde(default)]
    pub picture: Option<Picture>,
    /// What the item says, of texts.
    #[serde(default)]
    pub text: Option<String>,
}

/// What a model makes of an item.
#[derive(Debug, Clone, Copy, Default, PartialEq, Serialize, Deserialize)]
pub struct Answer {
    /// Better the higher: 1 for right and 0 for wrong, or the task's own score.
    pub score: f32,
    #[serde(default)]
    pub class: Option<u16>,
    /// How far the right class leads the best other one (logits), negative where it is behind.
    #[serde(default)]
    pub lead: Option<f32>,
    /// How likely the model holds the class that it answers, 0 to 1; `None` where that was not kept.
    #[serde(default)]
    pub confidence: Option<f64>,
}

/// Items of class `label` that are taken for `class`, by the original and now.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Taken {
    pub label: u32,
    pub class: u16,
    pub before: u32,
    pub now: u32,
}

/// A histogram of leads (logits) of both models over the same bins between `low` and `high`; what lies outside is in the outermost.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct Leads {
    pub low: f32,
    pub high: f32,
    pub before: Vec<u32>,
    pub now: Vec<u32>,
}

/// What the network saw of an image, without its scaling of values: `width * height` pixels of red, green and blue, row by row.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Picture {
    pub width: u16,
    pub height: u16,
    #[serde(with = "base64_bytes")]
    pub rgb: Vec<u8>,
}

mod base64_bytes {
    use base64::Engine;
    use base64::engine::general_purpose::STANDARD;
    use serde::{Deserialize, Deserializer, Serializer, de::Error};

    pub fn serialize<S: Serializer>(bytes: &[u8], to: S) -> Result<S::Ok, S::Error> {
        to.serialize_str(&STANDARD.encode(bytes))
    }

    pub fn deserialize<'de, D: Deserializer<'de>>(from: D) -> Result<Vec<u8>, D::Error> {
        let text = std::borrow::Cow::<'de, str>::deserialize(from)?;
        STANDARD.decode(text.as_bytes()).map_err(D::Error::custom)
    }
}
