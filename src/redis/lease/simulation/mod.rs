//! Leases never admit more than the strategies promise without them: simulated processes that lease one key, by the code that
//! runs in a [`RedisStore`](crate::RedisStore), in a store on a clock that is set.

mod bounds;
mod fleet;
mod held;
mod ledger;
mod many_keys;
mod planned;
mod random;
mod retries;

/// Random numbers by a seed: SplitMix64.
struct Rng(u64);

impl Rng {
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut mixed = self.0;
        mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        mixed ^ (mixed >> 31)
    }

    fn below(&mut self, end: i64) -> i64 {
        (self.next() % end.max(1) as u64) as i64
    }

    fn one_in(&mut self, n: i64) -> bool {
        self.below(n) == 0
    }

    fn one_of<T: Copy>(&mut self, things: &[T]) -> T {
        things[self.below(things.len() as i64) as usize]
    }
}
