//! GGML's block formats, in which GGUF files store weights: their names, numbers and sizes. Not here: what their bits stand for
//! (`model::ggml`).

use serde::{Deserialize, Serialize};

/// A format whose values come in blocks.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
#[expect(non_camel_case_types, reason = "ggml's own names")]
pub enum Block {
    Q4_0,
    Q4_1,
    Q5_0,
    Q5_1,
    Q8_0,
    Q2_K,
    Q3_K,
    Q4_K,
    Q5_K,
    Q6_K,
    IQ4_NL,
    IQ4_XS,
}

use Block::{IQ4_NL, IQ4_XS, Q2_K, Q3_K, Q4_0, Q4_1, Q4_K, Q5_0, Q5_1, Q5_K, Q6_K, Q8_0};

/// The values of a super-block.
const SUPER: usize = 256;

impl Block {
    pub const ALL: [Block; 12] = [Q4_0, Q4_1, Q5_0, Q5_1, Q8_0, Q2_K, Q3_K, Q4_K, Q5_K, Q6_K, IQ4_NL, IQ4_XS];

    /// `ggml_type`'s number, ggml's name, values a block, bytes a block.
    const fn facts(self) -> (u32, &'static str, usize, usize) {
        match self {
            Q4_0 => (2, "Q4_0", 32, 18),
            Q4_1 => (3, "Q4_1", 32, 20),
            Q5_0 => (6, "Q5_0", 32, 22),
            Q5_1 => (7, "Q5_1", 32, 24),
            Q8_0 => (8, "Q8_0", 32, 34),
            Q2_K => (10, "Q2_K", SUPER, 84),
            Q3_K => (11, "Q3_K", SUPER, 110),
            Q4_K => (12, "Q4_K", SUPER, 144),
            Q5_K => (13, "Q5_K", SUPER, 176),
            Q6_K => (14, "Q6_K", SUPER, 210),
            IQ4_NL => (20, "IQ4_NL", 32, 18),
            IQ4_XS => (23, "IQ4_XS", SUPER, 136),
        }
    }

    /// The format with `ggml_type`'s number.
    pub fn of(number: u32) -> Option<Block> {
        Block::ALL.into_iter().find(|b| b.facts().0 == number)
    }

    /// `ggml_type`'s number.
    pub fn number(self) -> u32 {
        self.facts().0
    }

    /// ggml's name: `Q4_1`.
    pub fn label(self) -> &'static str {
        self.facts().1
    }

    /// Values a block.
    pub fn values(self) -> usize {
        self.facts().2
    }

    /// Bytes a block.
    pub fn size(self) -> usize {
        self.facts().3
    }

    /// A weight of zero stays one: values are multiples of a scale, without a minimum or uneven steps.
    pub fn has_zero(self) -> bool {
        matches!(self, Q4_0 | Q5_0 | Q8_0 | Q3_K | Q6_K)
    }

    /// This format, or the one with a zero that comes next in size.
    pub fn with_zero(self) -> Block {
        match self {
            Q4_0 | Q5_0 | Q8_0 | Q3_K | Q6_K => self,
            IQ4_NL | IQ4_XS => Q4_0,
            Q4_1 | Q4_K => Q5_0,
            Q5_1 | Q5_K => Q8_0,
            Q2_K => Q3_K,
        }
    }
}

/// A format whose values come in blocks, and that is read alone: nothing here is rounded to it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[expect(non_camel_case_types, reason = "ggml's own names")]
pub enum Coded {
    IQ1_S,
    IQ1_M,
    IQ2_XXS,
    IQ2_XS,
    IQ2_S,
    IQ3_XXS,
    IQ3_S,
    TQ1_0,
    TQ2_0,
    MXFP4,
}

impl Coded {
    pub const ALL: [Coded; 10] = [
        Coded::IQ1_S,
        Coded::IQ1_M,
        Coded::IQ2_XXS,
        Coded::IQ2_XS,
        Coded::IQ2_S,
        Coded::IQ3_XXS,
        Coded::IQ3_S,
        Coded::TQ1_0,
        Coded::TQ2_0,
        Coded::MXFP4,
    ];

    /// As [`Block::facts`].
    const fn facts(self) -> (u32, &'static str, usize, usize) {
        match self {
            Coded::IQ2_XXS => (16, "IQ2_XXS", SUPER, 66),
            Coded::IQ2_XS => (17, "IQ2_XS", SUPER, 74),
            Coded::IQ3_XXS => (18, "IQ3_XXS", SUPER, 98),
            Coded::IQ1_S => (19, "IQ1_S", SUPER, 50),
            Coded::IQ3_S => (21, "IQ3_S", SUPER, 110),
            Coded::IQ2_S => (22, "IQ2_S", SUPER, 82),
            Coded::IQ1_M => (29, "IQ1_M", SUPER, 56),
            Coded::TQ1_0 => (34, "TQ1_0", SUPER, 54),
            Coded::TQ2_0 => (35, "TQ2_0", SUPER, 66),
            Coded::MXFP4 => (39, "MXFP4", 32, 17),
        }
    }

    /// The format with `ggml_type`'s number.
    pub fn of(number: u32) -> Option<Coded> {
        Coded::ALL.into_iter().find(|c| c.facts().0 == number)
    }

    /// `ggml_type`'s number.
    pub fn number(self) -> u32 {
        self.facts().0
    }

    /// ggml's name: `IQ2_XXS`.
    pub fn label(self) -> &'static str {
        self.facts().1
    }

    /// Values a block.
    pub fn values(self) -> usize {
        self.facts().2
    }

    /// Bytes a block.
    pub fn size(self) -> usize {
        self.facts().3
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn formats_are_found_by_number_and_name() {
        for block in Block::ALL {
            assert_eq!(Block::of(block.number()), Some(block));
            let json = serde_json::to_string(&block).unwrap();
            assert_eq!(json, format!("\"{}\"", block.label().to_lowercase()));
        }
        assert_eq!((Block::of(0), Block::of(16)), (None, None));
    }
}
