//! Mutates inputs. All choices come from a seed, so a run can be repeated.

/// The maximum length of an input in bytes.
pub const INPUT_BYTES_MAX: usize = 32 * 1024;
/// The maximum number of changes in one mutation.
const CHANGES_MAX: usize = 6;
/// The limits of integer types.
const LIMITS: &[u64] = &[
    0,
    1,
    127,
    128,
    255,
    256,
    32767,
    65535,
    65536,
    i32::MAX as u64,
    u32::MAX as u64,
    i64::MAX as u64,
    u64::MAX - 1,
    u64::MAX,
];

/// A source of pseudo-random numbers (splitmix64).
#[derive(Clone, Debug)]
pub struct RandomSource(u64);

impl RandomSource {
    /// Creates a source whose numbers are determined by `seed`.
    pub fn new(seed: u64) -> Self {
        RandomSource(seed)
    }

    /// Returns the next number.
    pub fn next_number(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mixed = (self.0 ^ (self.0 >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        mixed ^ (mixed >> 31)
    }

    /// Returns a number less than `end`; 0 if `end` is 0.
    pub fn below(&mut self, end: usize) -> usize {
        (self.next_number() % end.max(1) as u64) as usize
    }

    /// Returns a length of at most `most`. Every order of magnitude is about equally likely.
    fn length(&mut self, most: usize) -> usize {
        let bits = self.below(usize::BITS as usize - most.leading_zeros() as usize + 1);
        self.below((1 << bits).min(most + 1))
    }

    fn place(&mut self, input: &[u8]) -> usize {
        self.below(input.len() + 1)
    }

    /// Returns the range of a random part of `input`.
    fn part(&mut self, input: &[u8]) -> std::ops::Range<usize> {
        let start = self.below(input.len());
        let length = self.length(input.len().saturating_sub(start));
        start..start + length
    }
}

/// Mutates inputs of one target.
#[derive(Debug)]
pub struct InputMutator {
    random: RandomSource,
    words: &'static [&'static str],
}

impl InputMutator {
    /// Creates a mutator whose choices are determined by `seed`.
    pub fn new(seed: u64, words: &'static [&'static str]) -> Self {
        InputMutator { random: RandomSource::new(seed), words }
    }

    /// Returns a mutation of one input in `corpus`, possibly with parts of other inputs. An empty corpus counts as
    /// one empty input.
    pub fn next_input(&mut self, corpus: &[Vec<u8>]) -> Vec<u8> {
        let choose =
            |random: &mut RandomSource| corpus.get(random.below(corpus.len())).cloned().unwrap_or_default();
        let mut input = choose(&mut self.random);
        for _ in 0..=self.random.below(CHANGES_MAX) {
            let other = choose(&mut self.random);
            self.change(&mut input, &other);
        }
        input.truncate(INPUT_BYTES_MAX);
        input
    }

    /// Changes `input` once. The kind of the change and its position are chosen at random.
    fn change(&mut self, input: &mut Vec<u8>, other: &[u8]) {
        let random = &mut self.random;
        let at = random.place(input);
        match random.below(12) {
            0 => flip_bit(random, input),
            1 => set_byte(random, input),
            2 => drop(input.splice(at..at, [random.next_number() as u8])),
            3 => drop(input.drain(random.part(input))),
            4 => input.truncate(at),
            5 => repeat_part(random, input),
            6 => drop(input.splice(at..at, other[random.part(other)].iter().copied())),
            7 => overwrite(input, at, &other[random.part(other)]),
            8 => change_number(random, input),
            9 => write_limit(random, input),
            _ => self.put_word(input, at),
        }
    }

    /// Inserts a token of the format at this position, or overwrites the bytes at this position with the token.
    fn put_word(&mut self, input: &mut Vec<u8>, at: usize) {
        let Some(word) = self.words.get(self.random.below(self.words.len())) else { return };
        match self.random.below(2) {
            0 => drop(input.splice(at..at, word.bytes())),
            _ => overwrite(input, at, word.as_bytes()),
        }
    }
}

fn flip_bit(random: &mut RandomSource, input: &mut [u8]) {
    let at = random.below(input.len());
    if let Some(byte) = input.get_mut(at) {
        *byte ^= 1 << random.below(8);
    }
}

fn set_byte(random: &mut RandomSource, input: &mut [u8]) {
    let at = random.below(input.len());
    if let Some(byte) = input.get_mut(at) {
        *byte = random.next_number() as u8;
    }
}

fn overwrite(input: &mut Vec<u8>, at: usize, with: &[u8]) {
    let end = (at + with.len()).min(input.len());
    input.splice(at..end, with.iter().copied());
}

/// Repeats a part of the input, up to 300 times.
fn repeat_part(random: &mut RandomSource, input: &mut Vec<u8>) {
    let part = input[random.part(input)].to_vec();
    let times = (1 + random.length(300)).min(INPUT_BYTES_MAX / part.len().max(1));
    let at = random.place(input);
    input.splice(at..at, part.repeat(times));
}

/// Changes a decimal number in the text slightly, or sets it to a limit of an integer type.
fn change_number(random: &mut RandomSource, input: &mut Vec<u8>) {
    let starts: Vec<usize> = (0..input.len())
        .filter(|at| input[*at].is_ascii_digit() && (*at == 0 || !input[at - 1].is_ascii_digit()))
        .collect();
    let Some(start) = starts.get(random.below(starts.len())).copied() else { return };
    let digits = input[start..].iter().take_while(|byte| byte.is_ascii_digit()).count();
    let text = String::from_utf8_lossy(&input[start..start + digits]);
    let number: u64 = text.parse().unwrap_or(u64::MAX);
    let changed = match random.below(4) {
        0 => number.wrapping_add(1),
        1 => number.wrapping_sub(1),
        2 => LIMITS[random.below(LIMITS.len())],
        _ => number.wrapping_add(random.below(1000) as u64),
    };
    input.splice(start..start + digits, changed.to_string().into_bytes());
}

/// Overwrites bytes with the limit of an integer type, as a binary number of 1, 2, 4 or 8 bytes.
fn write_limit(random: &mut RandomSource, input: &mut Vec<u8>) {
    let limit = LIMITS[random.below(LIMITS.len())].to_le_bytes();
    let at = random.place(input);
    let mut number = limit[..1 << random.below(4)].to_vec();
    if random.below(2) == 0 {
        number.reverse();
    }
    overwrite(input, at, &number);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_seed_determines_all_inputs() {
        let corpus = [b"one 12 two".to_vec(), b"\0\x01three".to_vec()];
        let inputs = |seed| {
            let mut mutator = InputMutator::new(seed, &["word"]);
            (0..1000).map(|_| mutator.next_input(&corpus)).collect::<Vec<_>>()
        };
        assert_eq!(inputs(7), inputs(7));
        assert_ne!(inputs(7), inputs(8));
    }

    #[test]
    fn inputs_vary_and_stay_short() {
        let mut mutator = InputMutator::new(1, &["word"]);
        let corpus = [b"a=12".to_vec(), vec![b'x'; INPUT_BYTES_MAX], Vec::new()];
        let inputs: Vec<_> = (0..3000).map(|_| mutator.next_input(&corpus)).collect();
        assert!(inputs.iter().all(|input| input.len() <= INPUT_BYTES_MAX));
        let distinct: std::collections::BTreeSet<_> = inputs.iter().collect();
        assert!(distinct.len() > 2000, "{}", distinct.len());
        let has = |wanted: &[u8]| inputs.iter().any(|input| input.windows(wanted.len()).any(|w| w == wanted));
        assert!(has(b"word") && has(b"a=13") && has(b"18446744073709551615"));
        assert!(InputMutator::new(1, &[]).next_input(&[]).len() <= INPUT_BYTES_MAX);
    }
}
