use std::cell::RefCell;

use super::*;
use crate::{BadAddress, Module};

/// Bytes from `START` on.
struct Bytes(RefCell<Vec<u8>>);

const START: u64 = 0x7000_0000_1000;

impl Bytes {
    fn range(&self, address: u64, bytes: usize) -> Result<std::ops::Range<usize>, BadAddress> {
        let start = usize::try_from(address.checked_sub(START).ok_or(BadAddress)?).map_err(|_| BadAddress)?;
        let end = start.checked_add(bytes).filter(|end| *end <= self.0.borrow().len()).ok_or(BadAddress)?;
        Ok(start..end)
    }
}

impl Memory for Bytes {
    fn read(&self, address: u64, out: &mut [u8]) -> Result<(), BadAddress> {
        let range = self.range(address, out.len())?;
        out.copy_from_slice(&self.0.borrow()[range]);
        Ok(())
    }

    fn write(&self, address: u64, bytes: &[u8]) -> Result<(), BadAddress> {
        let range = self.range(address, bytes.len())?;
        self.0.borrow_mut()[range].copy_from_slice(bytes);
        Ok(())
    }
}

/// A kernel of parameters `out`, `a` and `b`, of 64 bits each; `%rd1` is `out`, `%rd2` is `a`, `%rd3` is `b`, `%r2` and
/// `%r3` are their lower halves, `%rs2` and `%rs3` their lowest 16 bits.
fn kernel(body: &str) -> Kernel {
    let text = format!(
        ".version 8.1\n.target sm_80\n.address_size 64
        .visible .entry test(.param .u64 out, .param .u64 a, .param .u64 b)\n{{
            .reg .pred %p<4>; .reg .b16 %rs<10>; .reg .b32 %r<10>; .reg .b64 %rd<10>;
            ld.param.u64 %rd1, [out]; ld.param.u64 %rd2, [a]; ld.param.u64 %rd3, [b];
            cvt.u32.u64 %r2, %rd2; cvt.u32.u64 %r3, %rd3;
            cvt.u16.u64 %rs2, %rd2; cvt.u16.u64 %rs3, %rd3;
            {body}
        }}"
    );
    Module::parse(&text).unwrap().kernel("test").unwrap().clone()
}

fn params(a: u64, b: u64) -> Vec<u8> {
    [START, a, b].into_iter().flat_map(u64::to_le_bytes).collect()
}

/// Runs `body` in one thread over 64 bytes of memory.
fn run(body: &str, a: u64, b: u64) -> (Result<Stats, Fault>, Vec<u8>) {
    let memory = Bytes(RefCell::new((0..64).collect()));
    let result = kernel(body).launch([1; 3], [1; 3], &params(a, b), &memory);
    (result, memory.0.into_inner())
}

/// What `body` leaves in `%rd9`.
fn value(body: &str, a: u64, b: u64) -> u64 {
    let (result, bytes) = run(&format!("{body} st.global.u64 [%rd1], %rd9;"), a, b);
    result.unwrap();
    u64::from_le_bytes(bytes[..8].try_into().unwrap())
}

#[track_caller]
fn check64(instruction: &str, a: u64, b: u64, expected: u64) {
    let found = value(&format!("{instruction} %rd9, %rd2, %rd3;"), a, b);
    assert_eq!(found, expected, "{instruction} of {a:#x} and {b:#x}: {found:#x}, not {expected:#x}");
}

#[track_caller]
fn check32(instruction: &str, a: u32, b: u32, expected: u32) {
    let body = format!("{instruction} %r9, %r2, %r3; cvt.u64.u32 %rd9, %r9;");
    let found = value(&body, a.into(), b.into());
    assert_eq!(found, expected.into(), "{instruction} of {a:#x} and {b:#x}: {found:#x}, not {expected:#x}");
}

#[track_caller]
fn check16(instruction: &str, a: u16, b: u16, expected: u16) {
    let body = format!("{instruction} %rs9, %rs2, %rs3; cvt.u64.u16 %rd9, %rs9;");
    let found = value(&body, a.into(), b.into());
    assert_eq!(found, expected.into(), "{instruction} of {a:#x} and {b:#x}: {found:#x}, not {expected:#x}");
}

#[track_caller]
fn check_shift(instruction: &str, a: u64, by: u32, expected: u64) {
    let found = value(&format!("{instruction} %rd9, %rd2, %r3;"), a, by.into());
    assert_eq!(found, expected, "{instruction} of {a:#x} by {by}: {found:#x}, not {expected:#x}");
}

#[test]
fn sums_wrap_around() {
    check64("add.u64", u64::MAX, 2, 1);
    check64("add.s64", i64::MAX as u64, 1, 1 << 63);
    check64("sub.s64", 0, 1, u64::MAX);
    check32("add.s32", u32::MAX, 2, 1);
    check32("sub.u32", 3, 5, u32::MAX - 1);
    check16("add.u16", u16::MAX, 2, 1);
    check16("sub.s16", 0, 1, u16::MAX);
}

#[test]
fn products_have_a_low_a_high_and_a_whole_part() {
    check64("mul.lo.s64", 0x1_0000_0001, 0x1_0000_0001, 0x2_0000_0001);
    check64("mul.lo.u64", u64::MAX, u64::MAX, 1);
    check64("mul.hi.u64", u64::MAX, u64::MAX, u64::MAX - 1);
    check64("mul.hi.s64", u64::MAX, u64::MAX, 0);
    check64("mul.hi.s64", u64::MAX, 5, u64::MAX);
    check64("mul.hi.u64", 1 << 63, 6, 3);
    check32("mul.lo.s32", 0x1_0001, 0x1_0001, 0x2_0001);
    check32("mul.hi.u32", u32::MAX, u32::MAX, u32::MAX - 1);
    check32("mul.hi.s32", u32::MAX, 7, u32::MAX);
    let wide = |kind: &str, a, b| value(&format!("mul.wide.{kind} %rd9, %r2, %r3;"), a, b);
    assert_eq!(wide("u32", 0xffff_ffff, 0xffff_ffff), 0xffff_fffe_0000_0001);
    assert_eq!(wide("s32", 0xffff_ffff, 7), (-7_i64).cast_unsigned());
    let wide16 = "mul.wide.s16 %r9, %rs2, %rs3; cvt.u64.u32 %rd9, %r9;";
    assert_eq!(value(wide16, 0xffff, 3), 0xffff_fffd);
}

#[test]
fn a_product_and_a_sum_are_one_instruction() {
    assert_eq!(value("mad.lo.s64 %rd9, %rd2, %rd3, 5;", 3, 4), 17);
    assert_eq!(value("mad.wide.u32 %rd9, %r2, 24, %rd3;", 0xffff_ffff, 1), 0xffff_ffff * 24 + 1);
    assert_eq!(value("mad.lo.u32 %r9, %r2, %r3, %r2; cvt.u64.u32 %rd9, %r9;", 0xffff_ffff, 1), 0xffff_fffe);
    assert_eq!(value("mad.hi.u64 %rd9, %rd2, %rd3, %rd3;", 1 << 63, 4), 6);
}

#[test]
fn quotients_go_towards_zero() {
    check64("div.u64", u64::MAX, 2, u64::MAX / 2);
    check64("div.s64", (-7_i64).cast_unsigned(), 2, (-3_i64).cast_unsigned());
    check64("rem.s64", (-7_i64).cast_unsigned(), 2, (-1_i64).cast_unsigned());
    check64("rem.u64", 17, 5, 2);
    check32("div.s32", 0x8000_0000, u32::MAX, 0x8000_0000);
    check32("rem.s32", 0x8000_0000, u32::MAX, 0);
    check32("rem.s32", 0xffff_fff9, 4, 0xffff_fffd);
    check16("div.u16", 0xffff, 0x10, 0xfff);
}

#[test]
fn a_division_by_0_is_a_fault() {
    let (result, _) = run("div.u64 %rd9, %rd2, %rd3;", 1, 0);
    assert!(matches!(result, Err(Fault::DivisionByZero { .. })), "{result:?}");
    let (result, _) = run("rem.s32 %r9, %r2, %r3;", 1, 0);
    assert!(matches!(result, Err(Fault::DivisionByZero { .. })), "{result:?}");
}

#[test]
fn bits_are_combined() {
    check64("and.b64", 0b1100, 0b1010, 0b1000);
    check64("or.b64", 0b1100, 0b1010, 0b1110);
    check64("xor.b64", 0b1100, 0b1010, 0b0110);
    check32("xor.b32", u32::MAX, 1, u32::MAX - 1);
    assert_eq!(value("not.b64 %rd9, %rd2;", 5, 0), !5);
    assert_eq!(value("not.b32 %r9, %r2; cvt.u64.u32 %rd9, %r9;", 5, 0), 0xffff_fffa);
    assert_eq!(value("neg.s64 %rd9, %rd2;", 5, 0), 5_u64.wrapping_neg());
    assert_eq!(value("neg.s16 %rs9, %rs2; cvt.u64.u16 %rd9, %rs9;", 5, 0), 0xfffb);
}

#[test]
fn a_shift_beyond_the_width_leaves_nothing_but_the_sign() {
    check_shift("shl.b64", 3, 62, 3 << 62);
    check_shift("shl.b64", 3, 64, 0);
    check_shift("shl.b64", 3, u32::MAX, 0);
    check_shift("shr.u64", 1 << 63, 63, 1);
    check_shift("shr.u64", u64::MAX, 64, 0);
    check_shift("shr.s64", 1 << 63, 62, u64::MAX - 1);
    check_shift("shr.s64", 1 << 63, 64, u64::MAX);
    check_shift("shr.s64", i64::MAX as u64, 400, 0);
    check32("shl.b32", 1, 31, 1 << 31);
    check32("shl.b32", 1, 32, 0);
    check32("shr.u32", u32::MAX, 32, 0);
    check32("shr.s32", 1 << 31, 4, 0xf800_0000);
    check32("shr.s32", 1 << 31, 40, u32::MAX);
    assert_eq!(value("shl.b16 %rs9, %rs2, %r3; cvt.u64.u16 %rd9, %rs9;", 0xff, 12), 0xf000);
    assert_eq!(value("shr.s16 %rs9, %rs2, %r3; cvt.u64.u16 %rd9, %rs9;", 0x8000, 16), 0xffff);
}

#[test]
fn least_and_greatest_depend_on_the_sign() {
    check64("min.u64", u64::MAX, 1, 1);
    check64("min.s64", u64::MAX, 1, u64::MAX);
    check64("max.s64", u64::MAX, 1, 1);
    check32("max.u32", u32::MAX, 1, u32::MAX);
    check32("min.s32", u32::MAX, 1, u32::MAX);
}

#[track_caller]
fn check_comparison(instruction: &str, a: u64, b: u64, expected: bool) {
    let body = format!("{instruction}; selp.b64 %rd9, 11, 22, %p1;");
    assert_eq!(value(&body, a, b), if expected { 11 } else { 22 }, "{instruction} of {a:#x} and {b:#x}");
}

#[test]
fn comparisons_depend_on_the_sign_and_the_width() {
    check_comparison("setp.lt.u64 %p1, %rd2, %rd3", u64::MAX, 1, false);
    check_comparison("setp.lt.s64 %p1, %rd2, %rd3", u64::MAX, 1, true);
    check_comparison("setp.lo.u64 %p1, %rd2, %rd3", 1, u64::MAX, true);
    check_comparison("setp.ls.u32 %p1, %r2, %r3", 5, 5, true);
    check_comparison("setp.hi.u32 %p1, %r2, %r3", 0xffff_ffff, 5, true);
    check_comparison("setp.hs.u32 %p1, %r2, %r3", 4, 5, false);
    check_comparison("setp.gt.s32 %p1, %r2, %r3", 0xffff_ffff, 5, false);
    check_comparison("setp.gt.s32 %p1, %r2, -2", 0xffff_ffff, 0, true);
    check_comparison("setp.ge.s16 %p1, %rs2, %rs3", 0x8000, 0, false);
    check_comparison("setp.le.s32 %p1, %r2, %r3", 7, 7, true);
    // Only the lower halves are compared.
    check_comparison("setp.eq.s32 %p1, %r2, %r3", 0x1_0000_0007, 7, true);
    check_comparison("setp.ne.s64 %p1, %rd2, %rd3", 0x1_0000_0007, 7, true);
    check_comparison("setp.eq.b32 %p1, %r2, 0xfffffff9", 0xffff_fff9, 0, true);
}

#[test]
fn predicates_are_combined() {
    let both = "setp.lt.u64 %p2, %rd2, 10; setp.lt.u64 %p3, %rd3, 10;";
    let check =
        |combined: &str, a, b, expected| check_comparison(&format!("{both} {combined}"), a, b, expected);
    check("and.pred %p1, %p2, %p3", 1, 1, true);
    check("and.pred %p1, %p2, %p3", 1, 10, false);
    check("or.pred %p1, %p2, %p3", 1, 10, true);
    check("xor.pred %p1, %p2, %p3", 1, 1, false);
    check("not.pred %p1, %p2", 1, 1, false);
    check("mov.pred %p1, %p3", 1, 10, false);
}

#[test]
fn conversions_cut_and_extend() {
    let through = |conversion: &str, a| value(conversion, a, 0);
    assert_eq!(through("cvt.u64.u32 %rd9, %r2;", 0xffff_ffff), 0xffff_ffff);
    assert_eq!(through("cvt.s64.s32 %rd9, %r2;", 0xffff_ffff), u64::MAX);
    assert_eq!(through("cvt.u64.s32 %rd9, %r2;", 0x8000_0000), 0xffff_ffff_8000_0000);
    assert_eq!(through("cvt.s64.u32 %rd9, %r2;", 0x8000_0000), 0x8000_0000);
    // A type that is narrower than its register takes the register's lower bits, and fills the other by its sign.
    assert_eq!(through("cvt.s64.s8 %rd9, %rd2;", 0x1280), 0xffff_ffff_ffff_ff80);
    assert_eq!(through("cvt.u64.u8 %rd9, %rd2;", 0x1280), 0x80);
    assert_eq!(through("cvt.s16.s64 %r9, %rd2; cvt.u64.u32 %rd9, %r9;", 0x1_8000), 0xffff_8000);
    assert_eq!(through("cvt.u8.u32 %rs9, %r2; cvt.u64.u16 %rd9, %rs9;", 0x1234), 0x34);
    assert_eq!(through("cvt.u32.u16 %r9, %rs2; cvt.u64.u32 %rd9, %r9;", 0xf_ffff), 0xffff);
}

#[test]
fn loads_extend_and_stores_cut() {
    let first = |body: &str| {
        let (result, bytes) = run(body, 0x1_2345_6789, 0);
        result.unwrap();
        u64::from_le_bytes(bytes[..8].try_into().unwrap())
    };
    let stored = "st.global.u64 [%rd1], %rd9;";
    assert_eq!(first(&format!("ld.global.u8 %rd9, [%rd1+63]; {stored}")), 63);
    let negative = "mov.u32 %r9, 0x80ff; st.global.u16 [%rd1+8], %r9;";
    assert_eq!(first(&format!("{negative} ld.global.s16 %rd9, [%rd1+8]; {stored}")), 0xffff_ffff_ffff_80ff);
    assert_eq!(first(&format!("{negative} ld.global.b16 %rd9, [%rd1+8]; {stored}")), 0x80ff);
    let byte = format!("{negative} ld.global.s8 %r9, [%rd1+8]; cvt.u64.u32 %rd9, %r9; {stored}");
    assert_eq!(first(&byte), 0xffff_ffff);
    assert_eq!(first("st.global.u8 [%rd1], %rd2;"), 0x0706_0504_0302_0189);
    assert_eq!(first("st.global.u16 [%rd1+2], -2;"), 0x0706_0504_fffe_0100);
    assert_eq!(first("add.s64 %rd8, %rd1, 16; st.global.u64 [%rd8+-16], 7;"), 7);
    assert_eq!(first("add.s64 %rd8, %rd1, 16; st.global.u64 [%rd8-16], 8;"), 8);
    let hints = "ld.global.nc.L1::no_allocate.u64 %rd9, [%rd1+8]; st.global.cs.u64 [%rd1], %rd9;";
    assert_eq!(first(hints), 0x0f0e_0d0c_0b0a_0908);
}

#[test]
fn vectors_are_loaded_and_stored_whole() {
    let body =
        "ld.global.v4.u32 {%r4, %r5, %r6, %r7}, [%rd1+16]; st.global.v4.u32 [%rd1], {%r7, %r6, %r5, %r4};
        ld.global.v2.u64 {%rd4, %rd5}, [%rd1+48]; st.global.v2.b64 [%rd1+32], {%rd5, %rd4};
        ld.global.v2.s8 {%rs4, %rs5}, [%rd1+62]; st.global.v2.u8 [%rd1+16], {%rs4, %rs5};";
    let (result, bytes) = run(body, 0, 0);
    let stats = result.unwrap();
    assert_eq!(bytes[..16], [28, 29, 30, 31, 24, 25, 26, 27, 20, 21, 22, 23, 16, 17, 18, 19]);
    assert_eq!(bytes[16..32], [62, 63, 18, 19, 20, 21, 22, 23, 24, 25, 26, 27, 28, 29, 30, 31]);
    assert_eq!(bytes[32..48], [56, 57, 58, 59, 60, 61, 62, 63, 48, 49, 50, 51, 52, 53, 54, 55]);
    assert_eq!((stats.loads, stats.stores, stats.loaded_bytes, stats.stored_bytes), (3, 3, 34, 34));
}

#[test]
fn an_access_that_is_not_aligned_is_a_fault() {
    for (body, offset, bytes) in [
        ("ld.global.u16 %rs9, [%rd1+1];", 1, 2),
        ("ld.global.u64 %rd9, [%rd1+4];", 4, 8),
        ("ld.global.v4.u32 {%r4, %r5, %r6, %r7}, [%rd1+8];", 8, 16),
        ("ld.global.v2.u8 {%r4, %r5}, [%rd1+1];", 1, 2),
        ("st.global.u32 [%rd1+2], %r2;", 2, 4),
        ("st.global.v2.u64 [%rd1+8], {%rd2, %rd3};", 8, 16),
    ] {
        let (result, after) = run(body, 0, 0);
        let Err(Fault::Misaligned { address, bytes: found, place }) = result else {
            panic!("{body}: {result:?}");
        };
        assert_eq!((address, found, place.line), (START + offset, bytes, 10), "{body}");
        assert_eq!(after, (0..64).collect::<Vec<_>>(), "{body}");
    }
}

#[test]
fn an_address_that_memory_refuses_is_a_fault() {
    let (result, _) = run("ld.global.u8 %rs9, [%rd1+64];", 0, 0);
    let place = Place { line: 10, cta: [0; 3], thread: [0; 3] };
    assert_eq!(result, Err(Fault::BadAddress { address: START + 64, bytes: 1, is_store: false, place }));
    let (result, _) = run("st.global.u64 [%rd1+-8], %rd2;", 0, 0);
    assert_eq!(result, Err(Fault::BadAddress { address: START - 8, bytes: 8, is_store: true, place }));
}

#[test]
fn guards_and_branches_decide_what_runs() {
    // The sum of 1 to a, over a loop.
    let body = "mov.u64 %rd9, 0; mov.u64 %rd8, %rd2;
        $again: setp.eq.s64 %p1, %rd8, 0; @%p1 bra $done;
        add.s64 %rd9, %rd9, %rd8; sub.s64 %rd8, %rd8, 1; bra.uni $again;
        $done:";
    assert_eq!(value(body, 100, 0), 5050);
    assert_eq!(value(body, 0, 0), 0);
    let guarded =
        "mov.u64 %rd9, 1; setp.lt.u64 %p1, %rd2, %rd3; @%p1 mov.u64 %rd9, 2; @!%p1 add.s64 %rd9, %rd9, 4;";
    assert_eq!(value(guarded, 1, 2), 2);
    assert_eq!(value(guarded, 2, 1), 5);
    let (result, bytes) = run("setp.eq.s64 %p1, %rd2, 0; @%p1 ret; st.global.u8 [%rd1], 9;", 0, 0);
    assert_eq!((result.unwrap().instructions, bytes[0]), (9, 0));
}

#[test]
fn a_thread_that_does_not_end_is_a_fault() {
    let endless = kernel("$loop: bra $loop;");
    let memory = Bytes(RefCell::new(Vec::new()));
    let result = endless.launch_limited([1; 3], [1; 3], &params(0, 0), &memory, 1000);
    assert!(matches!(result, Err(Fault::TooLong { max: 1000, .. })), "{result:?}");
    // The limit is for each thread: many threads may run more together. 7 conversions, a move and the end.
    let short = kernel("mov.u32 %r9, 1;");
    let stats = short.launch_limited([10, 1, 1], [100, 1, 1], &params(0, 0), &memory, 9).unwrap();
    assert_eq!((stats.threads, stats.instructions), (1000, 9000));
    assert!(short.launch_limited([1; 3], [1; 3], &params(0, 0), &memory, 8).is_err());
}

#[test]
fn every_thread_knows_where_it_is() {
    // Thread n of all writes its coordinates at byte n * 8.
    let body =
        "mov.u32 %r4, %ctaid.z; mov.u32 %r5, %nctaid.y; mov.u32 %r6, %ctaid.y; mad.lo.s32 %r4, %r4, %r5, %r6;
        mov.u32 %r5, %nctaid.x; mov.u32 %r6, %ctaid.x; mad.lo.s32 %r4, %r4, %r5, %r6;
        mov.u32 %r5, %ntid.z; mov.u32 %r6, %tid.z; mad.lo.s32 %r4, %r4, %r5, %r6;
        mov.u32 %r5, %ntid.y; mov.u32 %r6, %tid.y; mad.lo.s32 %r4, %r4, %r5, %r6;
        mov.u32 %r5, %ntid.x; mov.u32 %r6, %tid.x; mad.lo.s32 %r4, %r4, %r5, %r6;
        mul.wide.u32 %rd4, %r4, 8; add.s64 %rd4, %rd1, %rd4;
        st.global.u32 [%rd4], %r4; mov.u32 %r7, %laneid; st.global.u32 [%rd4+4], %r7;";
    let (grid, block) = ([2, 3, 2], [5, 4, 3]);
    let memory = Bytes(RefCell::new(vec![0xff; 12 * 60 * 8]));
    let stats = kernel(body).launch(grid, block, &params(0, 0), &memory).unwrap();
    assert_eq!(stats.threads, 720);
    let bytes = memory.0.into_inner();
    for (nth, entry) in (0_u32..).zip(bytes.chunks(8)) {
        assert_eq!(entry[..4], nth.to_le_bytes());
        assert_eq!(entry[4..], (nth % 60 % 32).to_le_bytes(), "{nth}");
    }
}

#[test]
fn the_thread_that_faults_is_named() {
    let body = "mov.u32 %r4, %ctaid.x; setp.ne.s32 %p1, %r4, 1; @%p1 ret; mov.u32 %r5, %tid.y; setp.eq.s32 %p2, %r5, 2;
        @%p2 st.global.u8 [%rd3], 0;";
    let memory = Bytes(RefCell::new(Vec::new()));
    let result = kernel(body).launch([3, 1, 1], [2, 4, 1], &params(0, 0), &memory);
    let place = Place { line: 11, cta: [1, 0, 0], thread: [0, 2, 0] };
    let fault = Fault::BadAddress { address: 0, bytes: 1, is_store: true, place };
    assert_eq!(
        fault.to_string(),
        "1 bytes at 0x0 cannot be reached, line 11, CTA [1, 0, 0], thread [0, 2, 0]"
    );
    assert_eq!(result, Err(fault));
}

#[test]
fn a_register_that_nothing_was_written_to_is_poisoned_in_every_thread() {
    // Were registers kept from thread to thread, the second would add to what the first left.
    let body = "add.s64 %rd9, %rd9, 1; st.global.u64 [%rd1], %rd9;";
    let memory = Bytes(RefCell::new(vec![0; 8]));
    kernel(body).launch([2, 1, 1], [2, 1, 1], &params(0, 0), &memory).unwrap();
    assert_eq!(memory.0.into_inner(), 0xa5a5_a5a5_a5a5_a5a6_u64.to_le_bytes());
}

#[test]
fn a_launch_that_no_device_would_take_is_refused() {
    let kernel = kernel("ret;");
    let memory = Bytes(RefCell::new(Vec::new()));
    for (grid, block) in
        [([0, 1, 1], [1; 3]), ([1; 3], [1, 0, 1]), ([1; 3], [1025, 1, 1]), ([1; 3], [1 << 16, 1 << 16, 1])]
    {
        let result = kernel.launch(grid, block, &params(0, 0), &memory);
        assert_eq!(result, Err(Fault::Shape { grid, block, threads_max: 1024 }));
    }
    for got in [0, 23, 25] {
        let result = kernel.launch([1; 3], [1; 3], &vec![0; got], &memory);
        assert_eq!(result, Err(Fault::Params { declared: 24, got }));
    }
}
