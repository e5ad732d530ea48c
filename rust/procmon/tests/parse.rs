//! The parsers, on real texts and on arbitrary ones.

use procmon::tree::parse_stat_ppid;
use procmon::{ProcError, SmapsRollup, Status, StatusMemory};
use proptest::prelude::*;

const KIB: u64 = 1024;

macro_rules! fixture {
    ($name:literal) => {
        include_str!(concat!("fixtures/", $name))
    };
}

#[test]
fn status_of_a_process() {
    let status = Status::parse(fixture!("python_status.txt")).unwrap();
    assert_eq!(status.name, "a) R (b 1");
    assert_eq!((status.state, status.ppid), ('S', 7741));
    assert_eq!(
        status.memory,
        Some(StatusMemory {
            rss_anon_bytes: 20056 * KIB,
            rss_file_bytes: 6064 * KIB,
            rss_shmem_bytes: 8192 * KIB,
            vm_swap_bytes: 0,
        })
    );
}

#[test]
fn status_in_a_container() {
    let status = Status::parse(fixture!("container_status.txt")).unwrap();
    assert_eq!(status.name, r"gunicorn\nworker");
    assert_eq!(status.memory.unwrap().vm_swap_bytes, 4096 * KIB);
}

#[test]
fn status_of_tasks_without_memory() {
    let zombie = Status::parse(fixture!("zombie_status.txt")).unwrap();
    assert_eq!(
        (zombie.state, zombie.ppid, zombie.memory),
        ('Z', 7746, None)
    );
    let kernel_thread = Status::parse(fixture!("kernel_thread_status.txt")).unwrap();
    assert_eq!(
        (kernel_thread.name.as_str(), kernel_thread.memory),
        ("kthreadd", None)
    );
}

#[test]
fn rollup_of_a_process() {
    let rollup = SmapsRollup::parse(fixture!("python_smaps_rollup.txt")).unwrap();
    assert_eq!(rollup.rss_bytes, 34312 * KIB);
    assert_eq!(rollup.pss_bytes, 32811 * KIB);
    assert_eq!(rollup.pss_anon_bytes, Some(20056 * KIB));
    assert_eq!(rollup.pss_file_bytes, Some(4563 * KIB));
    assert_eq!(rollup.pss_shmem_bytes, Some(8192 * KIB));
    assert_eq!(rollup.private_clean_bytes, 4408 * KIB);
    assert_eq!(rollup.private_dirty_bytes, 28248 * KIB);
}

#[test]
fn rollup_of_an_older_kernel_lacks_the_parts() {
    let rollup = SmapsRollup::parse(fixture!("container_smaps_rollup.txt")).unwrap();
    assert_eq!(rollup.pss_bytes, 32811 * KIB);
    assert_eq!(
        (
            rollup.pss_anon_bytes,
            rollup.pss_file_bytes,
            rollup.pss_shmem_bytes
        ),
        (None, None, None)
    );
    assert_eq!(rollup.swap_pss_bytes, 2048 * KIB);
    assert_eq!(rollup.private_hugetlb_bytes, 2048 * KIB);
}

#[test]
fn parent_survives_a_hostile_name() {
    assert_eq!(parse_stat_ppid(fixture!("python_stat.txt")), Some(7741));
    assert_eq!(parse_stat_ppid(fixture!("zombie_stat.txt")), Some(7746));
    assert_eq!(parse_stat_ppid("1 (init"), None);
    assert_eq!(parse_stat_ppid("1 (init) S"), None);
}

#[test]
fn resident_memory_without_its_parts_is_refused() {
    let text: String = fixture!("python_status.txt")
        .lines()
        .filter(|line| !line.starts_with("RssAnon"))
        .map(|line| format!("{line}\n"))
        .collect();
    let error = Status::parse(&text).unwrap_err();
    assert!(matches!(
        error,
        ProcError::MissingField {
            field: "RssAnon",
            ..
        }
    ));
    assert_eq!(
        error.to_string(),
        "status has no line RssAnon: expected on Linux 4.14 or newer"
    );
}

#[test]
fn numbers_that_are_none_are_refused() {
    for (good, wrong) in [
        ("20056 kB", "20056 MB"),
        ("20056 kB", "-1 kB"),
        ("20056 kB", "kB"),
        ("20056 kB", "18446744073709551615 kB"),
        ("20056 kB", "20 056 kB"),
    ] {
        let text = fixture!("python_status.txt").replacen(good, wrong, 1);
        let error = Status::parse(&text).unwrap_err();
        assert!(
            matches!(&error, ProcError::BadField { field: "RssAnon", found, .. } if found == wrong),
            "{wrong}: {error}"
        );
    }
}

/// Texts near enough to real ones that the parsers get past the first line.
fn nearly_proc() -> impl Strategy<Value = String> {
    let key = prop::sample::select(vec![
        "Name",
        "State",
        "PPid",
        "VmRSS",
        "RssAnon",
        "RssFile",
        "RssShmem",
        "VmSwap",
        "Rss",
        "Pss",
        "Pss_Anon",
        "Private_Clean",
        "Private_Dirty",
        "Private_Hugetlb",
        "SwapPss",
        ")",
    ]);
    let value = prop_oneof![
        any::<u64>().prop_map(|n| format!("\t{n} kB")),
        any::<i128>().prop_map(|n| n.to_string()),
        "\\PC{0,12}",
        Just(String::new()),
    ];
    prop::collection::vec((key, value), 0..40).prop_map(|lines| {
        lines
            .into_iter()
            .map(|(key, value)| format!("{key}:{value}\n"))
            .collect()
    })
}

proptest! {
    #[test]
    fn parsers_never_panic(text in prop_oneof![any::<String>(), nearly_proc()]) {
        let _ = Status::parse(&text);
        let _ = SmapsRollup::parse(&text);
        let _ = parse_stat_ppid(&text);
    }

    #[test]
    fn what_is_written_is_read(anon in 0..u64::MAX / KIB, swap in 0..u64::MAX / KIB) {
        let text = format!(
            "Name:\tx\nState:\tR (running)\nPPid:\t1\nVmRSS:\t1 kB\nRssAnon:\t{anon} kB\nRssFile:\t2 kB\n\
             RssShmem:\t3 kB\nVmSwap:\t{swap} kB\n"
        );
        let memory = Status::parse(&text).unwrap().memory.unwrap();
        prop_assert_eq!(memory.rss_anon_bytes, anon * KIB);
        prop_assert_eq!(memory.vm_swap_bytes, swap * KIB);
    }
}
