//! For how many requests there is room.

use crate::{
    store::{CounterMode, CounterOp},
    strategy::rule,
};

/// For how many of `times` equal requests a line has room.
pub(super) fn fit(line: &CounterOp<'_>, room: u64, times: u64) -> u64 {
    let units = line.units.get();
    let has_room = match line.mode {
        // It rejects a key that is banned, and no units are not for free.
        CounterMode::CountRejections => room > 0,
        CounterMode::Check | CounterMode::Shadow { charges: false, .. } => room >= units,
        _ => return rule::fit(room, units, times),
    };
    if has_room { times } else { 0 }
}

/// For how many all lines have, without the shadows and the one at a place.
pub(super) fn fit_without(
    lines: &[CounterOp<'_>],
    rooms: &[u64],
    without: usize,
    times: u64,
) -> u64 {
    let lines = lines.iter().zip(rooms).enumerate();
    let others = lines
        .filter(|(place, (line, _))| *place != without && !line.mode.is_shadow())
        .map(|(_, (line, room))| fit(line, *room, times));
    others.min().unwrap_or(times)
}

/// How many of `times` equal requests are admitted, and how many are rejected that count.
pub(super) fn judge(lines: &[CounterOp<'_>], rooms: &[u64], times: u64) -> (u64, u64) {
    let (mut admitted, mut banned) = (times, false);
    for (line, room) in lines.iter().zip(rooms) {
        match line.mode {
            CounterMode::CountRejections => banned |= *room == 0,
            CounterMode::Shadow { .. } => {}
            _ => admitted = fit(line, *room, admitted),
        }
    }
    if banned {
        admitted = 0;
    }
    (admitted, counted_rejections(lines, rooms, times - admitted))
}

/// How many of so many rejected requests count, one after the other: those before a ban begins. What a ban rejects does not.
pub(super) fn counted_rejections(lines: &[CounterOp<'_>], rooms: &[u64], rejected: u64) -> u64 {
    let bans = lines.iter().zip(rooms);
    let bans = bans.filter(|(line, _)| line.mode == CounterMode::CountRejections);
    let before = bans.map(|(line, room)| match line.units.get() {
        0 if *room > 0 => rejected,
        units => room.div_ceil(units.max(1)),
    });
    before.fold(rejected, u64::min)
}

/// What of `denied` units counts, where there is `room` left after what was admitted. Only a policy that has too little room
/// refuses, and only its rejections count.
pub(super) fn denied_charge(line: &CounterOp<'_>, room: i64, denied: u64) -> u64 {
    let rule = line.limit.rule();
    if u64::try_from(room).is_ok_and(|room| room >= line.units.get()) {
        return 0;
    }
    let debt = if rule.stores_each_unit() {
        0
    } else {
        rule.capacity()
    };
    let most = room.saturating_add_unsigned(debt);
    denied.min(u64::try_from(most).unwrap_or(0))
}
