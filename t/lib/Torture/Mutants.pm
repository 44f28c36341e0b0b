
=pod

=head1 NAME

Torture::Mutants - zklock with one thing broken on purpose, each of which a torture
test, or another one, must convict

=head1 SYNOPSIS

  Torture::Mutants::complaints($root);      # what is wrong with the table; nothing
  my $mutant = Torture::Mutants::named('grants_always');
  Torture::Mutants::mutate($mutant, $tree); # edits the files of $tree/src
  Torture::Mutants::options($mutant->{scene});    # of Torture->new

=head1 DESCRIPTION

A checker that finds nothing proves little as long as nobody has seen it find
something.  So each promise is broken in a copy of F<src/>, and a run of some seconds
must then name the violation; the same run of the real thing must find nothing.
Torture::Trial runs them, and F<dev/mutants>.

To add a mutant is to add an entry to the table:

  name       in words joined by underscores
  what       is broken
  edits      [ file in src/, text that is there exactly once, what takes its place ], ...
  scene      a key of %SCENE: the run that shows it
  convicted  kinds of violations (see Torture::Checker), one of which must be found

or, in the place of the last two, what else shows it, since the moment never comes by
chance: subtests of another file, which must fail:

  test       [ file in t/, without .pl, subtest, ... ]

=cut

package Torture::Mutants;

use strict;
use warnings;

# What the runs need: faults, their moments, how crowded the queues are.  "sure" means
# that the violation comes up so often in these seconds that a run without it is out of
# the question; the others are tested only where somebody asks for them.
our %SCENE = (
	crowd => {
		what => 'long queues and no fault',
		sure => 1,
		options => { seconds => 8, faults => 'none', kinds => 'exclusive', workers => 8, objects => 2, rest => 0.05 }
	},
	readers => {
		what => 'the same with readers',
		sure => 1,
		options => { seconds => 8, faults => 'none', kinds => 'exclusive,shared', workers => 8, objects => 2, rest => 0.05 }
	},
	places => {
		what => 'the same with semaphores',
		sure => 1,
		options => { seconds => 8, faults => 'none', kinds => 'semaphore', workers => 8, objects => 2, rest => 0.05 }
	},
	slow_commit => {
		what => 'commits take 50 ms, and nothing but the lock keeps the writers apart',
		sure => 1,
		options => {
			seconds => 16, faults => 'none', kinds => 'exclusive', contents => ['counter'], workers => 8, objects => 2, rest => 0.05,
			fence => 0, commit_delay => 50_000
		}
	},
	asleep => {
		what => 'holders are stopped for longer than their sessions live',
		sure => 1,
		options => {
			seconds => 15, faults => 'backend_stop', moment => 'critical', pause => [ 0.3, 0.8 ], kinds => 'exclusive', contents => ['counter'], objects => 4,
			fence => 0
		}
	},
	handovers => {
		what => 'as many of them as possible',
		options => { seconds => 20, faults => 'none', kinds => 'exclusive', workers => 10, objects => 3, style => 'curator', think => [ 0, 0.01 ], rest => 0.01, hang => 10 }
	},
	breaks => {
		what => 'somebody deletes nodes of sessions that have several',
		options => {
			seconds => 20, faults => 'lock_break', pause => [ 0.2, 0.4 ], kinds => 'several', workers => 6, objects => 12, style => 'curator', fence => 0,
			think => [ 2, 3 ], rest => 0.05
		}
	},
	drops => {
		what => 'connections break while many wait',
		options => { seconds => 10, faults => 'drop', pause => [ 0.5, 1 ], kinds => 'exclusive', workers => 10, objects => 2, rest => 0.05, hang => 10 }
	});

our @MUTANTS = (
	{
		name => 'grants_always',
		what => 'a lock that always grants',
		edits => [ [ 'lock/queue/acquire.c', 'return p->view.need == 0 ? GRANTED : WAIT_ON;', 'return GRANTED;' ] ],
		scene => 'crowd',
		convicted => [ 'two holders', 'turn' ]
	},
	{
		name => 'out_of_turn',
		what => 'who watches the two before it takes the lock when either of them goes',
		edits => [ [ 'lock/queue/blockers.c', 'if (view->next && watch.epoch == epoch && is_our_turn(c, p))', 'if (watch.epoch == epoch && is_our_turn(c, p))' ] ],
		scene => 'crowd',
		convicted => ['turn']
	},
	{
		name => 'writer_beside_readers',
		what => 'a shared lock that lets a writer in',
		edits => [ [ 'zk/lock_protocol.c', 'if (queue[i].mode == ZKP_SHARED && mode == ZKP_SHARED)', 'if (queue[i].mode == ZKP_SHARED)' ] ],
		scene => 'readers',
		convicted => [ 'two holders', 'turn' ]
	},
	{
		name => 'place_too_many',
		what => 'a semaphore with one place more than its holders were told',
		edits => [ [ 'zk/lock_protocol.c', "\tif (before < permits)\n\t{", "\tif (before <= permits)\n\t{" ] ],
		scene => 'places',
		convicted => [ 'two holders', 'turn' ]
	},
	{
		name => 'release_before_commit',
		what => 'the end of a transaction releases before it is visible to others',
		edits => [ [ 'lock/transaction/xact.c', "\t\tbefore_commit();\n", "\t{\n\t\tbefore_commit();\n\t\tend_transaction(true);\n\t}\n" ] ],
		scene => 'slow_commit',
		convicted => ['lost update']
	},
	{
		name => 'guard_always_passes',
		what => 'a commit guard that lets every transaction pass',
		edits => [ [ 'lock/transaction/commit_guard.c', "if (zklock_commit_guard == ZKLOCK_GUARD_OFF)\n\t\treturn NULL;", "if (true)\n\t\treturn NULL;" ] ],
		scene => 'asleep',
		convicted => ['late commit']
	},
	{
		name => 'release_without_standby',
		what => 'a COMMIT that waits for its standby as the postmaster dies gives its locks back',
		edits => [ [ 'lock/transaction/xact.c', 'commit && ProcDiePending && !PostmasterIsAliveInternal()', 'false' ] ],
		test => [ '034_stop', 'the postmaster is killed while COMMIT waits for its synchronous standby' ]
	},
	{
		name => 'wakeup_dropped',
		what => 'one event of a hundred does not reach who waits for it',
		edits => [
			[   'zk/watch.c', "\t\tif (type == ZOO_DELETED_EVENT)\n",
				"\t\tif (type == ZOO_DELETED_EVENT && zks_random(100) == 0)\n\t\t\treturn;\n\t\tif (type == ZOO_DELETED_EVENT)\n"
			]
		],
		scene => 'handovers',
		convicted => ['no end']
	},
	{
		name => 'no_list_after_reconnection',
		what => 'who has reconnected believes no watch of the old connection, and sets no new one',
		edits => [
			[   'lock/queue/blockers.c', "if (info->epoch != p->list_epoch)\n\t\treturn LIST_AGAIN;",
				"if (info->epoch != p->list_epoch)\n\t\treturn WAIT_ON;"
			]
		],
		scene => 'drops',
		convicted => ['no end']
	},
	{
		name => 'turn_without_proof',
		what => 'an event grants the lock, whatever has become of the connection and our own node since',
		edits => [
			[ 'lock/queue/blockers.c', "\tif (info->state != ZKS_CONNECTED)\n\t\treturn WAIT_ON;\n", '' ],
			[   'lock/queue/blockers.c', "p->list_epoch == info.epoch &&\n\t\tzks_is_fresh(&info);",
				'p->list_epoch == info.epoch;'
			],
			[ 'lock/queue/place.c', 'proof = zkb_prove(nodes, n, ZKS_GRANT, 0, c->wait, zkb_wait_answer_due(c->wait));', 'proof = ZKB_PROVEN;' ]
		],
		test => [ '014_ensemble', 'a grant that no quorum has confirmed' ]
	},
	{
		name => 'sync_for_proof',
		what => 'that a sync was answered, and then a read that shows our own node, is taken for the word of a quorum',
		edits => [
			[   'zk/multi.c', "\tr->op = ZOO_MULTI_OP;\n",
				"\tif (ops[0].type == ZOO_CHECK_OP)\n\t{\n"
				  . "\t\tr->writes = true;\n\t\tr->sync_path = ops[0].path;\n\t\tzkr_read_locked(r, ZOO_EXISTS_OP, ops[0].path);\n\t\treturn;\n\t}\n"
				  . "\tr->op = ZOO_MULTI_OP;\n"
			]
		],
		test => [ '014_ensemble', 'a leader without followers, and an event of before' ]
	},
	{
		name => 'no_own_watch',
		what => 'no watch on our own node, and nobody misses it',
		edits => [
			[ 'zk/proof.c', "\tif (zkn_is_renaming(n))\n\t\treturn;\n\tif (old != NULL", "\tif (true)\n\t\treturn;\n\tif (old != NULL" ],
			[   'zk/proof.c', "return n->watch != NULL && n->watch->info.state == ZKR_WATCH_ARMED &&\n\t\tn->watch->info.epoch == n->session->info.epoch;",
				'return true;'
			],
			[   'lock/queue/blockers.c', "node.state == ZKN_PRESENT && node.watch == ZKR_WATCH_ARMED &&\n\t\tnode.watch_epoch == info.epoch && ",
				'node.state == ZKN_PRESENT && '
			],
			[ 'lock/queue/blockers.c', 'if (node.watch == ZKR_WATCH_FAILED || node.watch == ZKR_WATCH_CHANGED)', 'if (false)' ]
		],
		scene => 'breaks',
		convicted => [ 'late commit', 'stale grant' ]
	},
	{
		name => 'list_without_proof',
		what => 'a list or an event grants the lock, though no quorum has confirmed our own node since',
		edits => [ [ 'lock/queue/place.c', 'proof = zkb_prove(nodes, n, ZKS_GRANT, 0, c->wait, zkb_wait_answer_due(c->wait));', 'proof = ZKB_PROVEN;' ] ],
		test => [ '014_ensemble', 'a leader without followers, and an event of before' ]
	},
	{
		name => 'reconnection_for_proof',
		what => "that a session was taken up again is taken for the word of a quorum",
		edits => [
			[   'zk/connection.c', "\t\tzkr_heard_locked(s, s->attempts.at);\n\t\tzks_lease_renewed(&s->info);\n",
				"\t\tzkr_heard_locked(s, s->attempts.at);\n\t\tzks_lease_renewed(&s->info);\n\t\ts->info.quorum_at = s->attempts.at;\n\t\ts->info.gap_at = 0;\n"
			]
		],
		test => [ '014_ensemble', 'a leader without followers, and an event of before' ]
	},
	{
		name => 'watches_mislaid',
		what => 'a watch is kept where no event looks for it',
		edits => [ [ 'zk/watch.c', 'LIST_INSERT_HEAD(chain_of(s, path), w, in_chain);', 'LIST_INSERT_HEAD(&s->watches.chains[0], w, in_chain);' ] ],
		test => [ '025_commit_guard', 'several locks, one of them deleted by hand' ]
	},

	# a grant without a list
	{
		name => 'next_of_any_number',
		what => 'our new node is taken for the next one, whatever its number',
		edits => [ [ 'zk/lock_protocol.c', ' && b.seq == a.seq + 1 &&', ' &&' ] ],
		test => [ '104_no_list', 'whoever comes in between' ]
	},
	{
		name => 'next_in_any_directory',
		what => 'nor does it matter how many transactions were in between',
		edits => [ [ 'zk/lock_protocol.c', "last_czxid >> 32 == czxid >> 32 &&\n\t\tczxid - last_czxid < (int64_t) a.seq + 3;", 'last_czxid >> 32 == czxid >> 32;' ] ],
		test => [ '104_no_list', 'a directory that is made again', 'a directory that is reaped' ]
	},
	{
		name => 'next_by_one_transaction_more',
		what => 'there may be one transaction more between them than a directory needs that is made again',
		edits => [ [ 'zk/lock_protocol.c', '(int64_t) a.seq + 3;', '(int64_t) a.seq + 4;' ] ],
		test => [ '104_no_list', 'a directory that is made again' ]
	},
	{
		name => 'next_though_not_alone',
		what => 'nor whether others stood behind the last one',
		edits => [ [ 'lock/queue/acquire.c', 'p->alone = p->view.self_seen && listed == 1;', 'p->alone = true;' ] ],
		test => [ '104_no_list', 'one with a number from the future' ]
	},
	{
		name => 'next_near_wrap',
		what => 'numbers that are about to wrap count as others do',
		edits => [ [ 'zk/lock_protocol.c', 'a.seq >= 0 && !near_wrap(b.seq) &&', 'a.seq >= 0 &&' ] ],
		test => [ '012_stress', 'numbers that are about to wrap are not relied on' ]
	},
	{
		name => 'next_on_any_connection',
		what => 'it may be on another connection than the last one',
		edits => [
			[ 'zk/turn.c', 't->given_back && t->epoch == s->info.epoch &&', 't->given_back &&' ],
			[ 'zk/turn.c', 't->epoch == s->info.epoch && t->in_a_row >= t->needed', 't->in_a_row >= t->needed' ]
		],
		test => [ '104_no_list', 'what ends it' ]
	},
	{
		name => 'next_though_lost',
		what => 'the last one need not have been ours until we gave it back',
		edits => [ [ 'zk/turn.c', 'deleted && t->epoch', 't->epoch' ] ],
		test => [ '104_no_list', 'what ends it' ]
	},
	{
		name => 'next_after_reader',
		what => 'nor need it have been exclusive until then',
		edits => [ [ 'zk/turn.c', "\tif (t != NULL)\n\t\tforget(s, t);\n}", "\t(void) t;\n}" ] ],
		test => [ '104_no_list', 'what ends it' ]
	},

	# procedures that wait without a snapshot
	{
		name => 'any_snapshot_given_up',
		what => 'a procedure gives up the active snapshot, whosever it is',
		edits => [ [ 'backend/internals.h', 'ActiveSnapshotSet() && GetActiveSnapshot() == ActivePortal->portalSnapshot', 'ActiveSnapshotSet()' ] ],
		test => [ '108_procedures', 'what the backend itself has while it waits' ]
	},
	{
		name => 'portal_keeps_pointer',
		what => 'the portal still points to the snapshot that is gone; assertions do not see it, since the next one gets its memory',
		edits => [ [ 'backend/internals.h', "\tActivePortal->portalSnapshot = NULL;", '' ] ],
		test => [ '108_procedures', 'what the backend itself has while it waits' ]
	},
	{
		name => 'no_portal',
		what => 'a trigger that runs at COMMIT, or in a worker of logical replication, is taken for a procedure in a portal',
		edits => [ [ 'backend/internals.h', "ActivePortal != NULL && ActivePortal->portalSnapshot != NULL &&\n\t\t", '' ] ],
		test => [ '108_procedures', 'with a snapshot' ]
	},
	{
		name => 'path_read_late',
		what => 'a procedure reads its arguments when the snapshot has gone that they were found with',
		edits => [
			[ 'zklock.c', "\tchar\t   *path = zkb_path_argument(fcinfo);\n\tint64\t\ttimeout = timeout_argument(fcinfo, 1);", "\tchar\t   *path;\n\tint64\t\ttimeout = timeout_argument(fcinfo, 1);" ],
			[ 'zklock.c', "left = leave_snapshot(fcinfo);\n", "left = leave_snapshot(fcinfo);\n\tpath = zkb_path_argument(fcinfo);\n" ]
		],
		test => [ '108_procedures', 'without a snapshot' ]
	},
	{
		name => 'no_snapshot_afterwards',
		what => 'a procedure that has waited leaves its caller without a snapshot',
		edits => [ [ 'zklock.c', "\tif (left)\n\t\tEnsurePortalSnapshotExists();\n", "\t(void) left;\n" ] ],
		test => [ '108_procedures', 'what the backend itself has while it waits' ]
	},
	{
		name => 'catalog_snapshot_stays',
		what => 'who has looked into a catalog sleeps with the snapshot of that',
		edits => [ [ 'backend/wait.c', "\tInvalidateCatalogSnapshot();\n", '' ] ],
		test => [ '108_procedures', 'what the backend itself has while it waits' ]
	},
	{
		name => 'no_snapshot_for_commit',
		what => 'who has no snapshot is taken for one that is about to commit, and not canceled when a lock is lost',
		edits => [ [ 'lock/transaction/stop.c', "\t\tdefault:\n\t\t\treturn false;\n", "\t\tdefault:\n\t\t\treturn true;\n" ] ],
		test => [ '034_stop', 'statements' ]
	},

	# how deadlocks are found, and ended
	{
		name => 'break_unchecked',
		what => 'who has found a cycle gives up its place if the first node of it is there, whatever has become of the others',
		edits => [ [ 'lock/deadlock/deadlock.c', "cycle->checks, cycle->nchecks);", "cycle->checks, 1);" ] ],
		test => [ '018_deadlocks', 'a writer gives up between two readers, one of whom breaks the cycle' ]
	},
	{
		name => 'break_beside_downgrade',
		what => 'a cycle is broken if the nodes of those that hold are there, whether or not they have changed',
		edits => [ [ 'lock/deadlock/chase.c', 'contender->granted ? contender->stat.version : -1);', '-1);' ] ],
		test => [ '018_deadlocks', 'who waits for a row gives up, and downgrades' ]
	},
	{
		name => 'break_beside_new_record',
		what => 'the same with the records that tell of waits for locks of PostgreSQL',
		edits => [
			[   'lock/deadlock/deadlock.c', "\t/* whatever happens now, it is better to know what became of it */\n",
				"\tfor (int i = 0; i < cycle->nrecords; i++)\n\t\tcycle->checks[i].version = -1;\n"
			]
		],
		test => [ '018_deadlocks', 'who waits for a row gives up, and runs on' ]
	},
	{
		name => 'others_believed_at_once',
		what => 'what a record says of waits on another server counts when it is read first',
		edits => [ [ 'lock/deadlock/deadlock.c', "\tif (cycle->nrecords > 0)\n\t{", "\tif (false)\n\t{" ] ],
		test => [ '018_deadlocks', 'what another server says counts when it has said it three times' ]
	},
	{
		name => 'one_local_look',
		what => 'who waited for us on our own server when the look began is not looked at again before the cycle is broken',
		edits => [ [ 'lock/deadlock/chase.c', "\t(void) zkl_find_waits(&c->records[OWN_RECORD].says);\n", '' ] ],
		test => [ '018_deadlocks', 'who waits for our row gives up while we look' ]
	},
	{
		name => 'hidden_by_another',
		what => 'a cycle that nobody says again hides another one, which is never found',
		edits => [ [ 'lock/deadlock/chase.c', "\t\tif (is_later(c, &local))\n\t\t\tcontinue;\n", "\t\t(void) is_later;\n" ] ],
		test => [ '018_deadlocks', 'a cycle that rests on what nobody says again hides no other' ]
	},
	{
		name => 'any_place_counts',
		what => 'who waits for a semaphore is stuck if one of its holders is',
		edits => [ [ 'lock/deadlock/wait_graph.c', 'return before->n - 1 >= c->permits;', 'return before->n > 1;' ] ],
		test => [ '018_deadlocks', 'semaphores' ]
	},
	{
		name => 'own_node_in_the_way',
		what => "a session's own shared node is taken for one that blocks its upgrade",
		edits => [ [ 'lock/deadlock/wait_graph.c', 'return a->owner == b->owner && a->owner != 0;', 'return false;' ] ],
		test => [ '018_deadlocks', 'an upgrade that waits for a reader who runs' ]
	},
	{
		name => 'any_author',
		what => "a record is its author's whichever session of ZooKeeper has written it",
		edits => [
			[ 'lock/deadlock/chase.c', '!record->valid || record->stat.owner != party->owner || ', '!record->valid || ' ],
			[ 'lock/deadlock/chase.c', 'if (owner != c->parties[at].owner)', 'if (false)' ]
		],
		test => [ '018_deadlocks', 'junk on the board' ]
	},

	# what counts as writing, and what is known of a statement
	{
		name => 'copy_is_no_writing',
		what => 'COPY FROM into a foreign table leaves no trace, so the session may have lost its locks',
		edits => [ [ 'lock/transaction/statement_hooks.c', "\t\t\tif (!((const CopyStmt *) statement)->is_from)\n\t\t\t\tbreak;\n\t\t\tpg_fallthrough;\n", "\t\t\tbreak;\n" ] ],
		test => [ '025_commit_guard', 'what counts as writing' ]
	},
	{
		name => 'partition_is_no_writing',
		what => 'nor does a row that is routed to a partition on another server',
		edits => [ [ 'lock/transaction/statement_hooks.c', ' ||
		 any_is_foreign(queryDesc->estate->es_tuple_routing_result_relations)', '' ] ],
		test => [ '025_commit_guard', 'what counts as writing' ]
	},
	{
		name => 'writing_remembered',
		what => 'a transaction that has written elsewhere makes all later ones rely on the locks of the session',
		edits => [ [ 'lock/transaction/xact.c', 'memset(&zkl_deeds, 0, sizeof(zkl_deeds));', 'zkl_deeds.judged = zkl_deeds.dropped_something = false;' ] ],
		test => [ '025_commit_guard', 'what counts as writing' ]
	},
	{
		name => 'writing_forgotten',
		what => 'what was written elsewhere is forgotten when a savepoint is rolled back to',
		edits => [
			[   'lock/transaction/xact.c', "\t/* what failed may have put that off until it is done */\n",
				"\tif (event == SUBXACT_EVENT_ABORT_SUB)\n\t\tmemset(&zkl_deeds, 0, sizeof(zkl_deeds));\n"
			]
		],
		test => [ '025_commit_guard', 'what counts as writing' ]
	},
	{
		name => 'begun_without_lock',
		what => 'what cannot be undone is judged at COMMIT like all else',
		edits => [ [ 'lock/transaction/statement_hooks.c', 'if (has_locks && cannot_be_undone(statement))', 'if (false && cannot_be_undone(statement))' ] ],
		test => [ '025_commit_guard', 'what cannot be undone is not begun' ]
	},

	# calls of PostgreSQL's own advisory lock functions
	{
		name => 'operators_pass',
		what => "an operator that is one of PostgreSQL's advisory lock functions is called where nobody sees it",
		edits => [ [ 'redirect.c', 'each_row(OperatorRelationId, note_operator);', 'if (false) each_row(OperatorRelationId, note_operator);' ] ],
		test => [ '106_redirect', 'unseen' ]
	},

	# which of the nodes at a path is ours, and what becomes of it
	{
		name => 'version_in_doubt',
		what => 'a single node may have the version of one whose delete was not answered, and be hit by that',
		edits => [ [ 'zk/single.c', 'if (zks_now() < other->stale_until && strcmp(other->dir, n->dir) == 0)', 'if (false)' ] ],
		test => [ '095_single', 'many deletes that are stuck on their way' ]
	},
	{
		name => 'late_create_stays',
		what => 'a create that was not answered is looked for once, and not as long as it may still be carried out',
		edits => [
			[   'zk/node.c', "\t\t\telse if (n->state == ZKN_ABSENT && usable && n->pending == 0 && now >= n->look_at)\n\t\t\t\tlook(n);\n\t\t\tbreak;",
				"\t\t\tbreak;"
			]
		],
		test => [ '069_late_create', 'the node of a lock, or of several' ]
	},
	{
		name => 'several_in_doubt',
		what => 'a create of several nodes that was not answered counts as refused',
		edits => [ [ 'zk/create.c', 'if (r->answer.rc == ZOK || zks_is_doubtful(r->answer.rc) || i == failed)', 'if (r->answer.rc == ZOK || i == failed)' ] ],
		test => [ '069_late_create', 'the node of a lock, or of several' ]
	},
	{
		name => 'refused_is_gone',
		what => 'a node that ZooKeeper refuses to delete counts as deleted, and stays',
		edits => [ [ 'zk/node.c', 'set_refused(n, rc == ZBADVERSION ? ZNOAUTH : rc);', 'deleted(n, ZOK);' ] ],
		test => [ '024_refused', 'rights that are withdrawn' ]
	},

	# what was lost, or may have been, when it was given back
	{
		name => 'release_in_doubt',
		what => 'a release whose answer is lost counts as that of a lock that was held',
		edits => [ [ 'lock/transaction/release.c', 'if (ending->ended == WAITING || ending->ended == UNCERTAIN)', 'if (false)' ] ],
		test => [ '025_commit_guard', 'the answer to a release is lost' ]
	},
	{
		name => 'loss_forgotten',
		what => 'a transaction does not rely on a lock that was lost before it gave it back',
		edits => [ [ 'lock/transaction/release.c', "if (ending->ended == LOST_BEFORE)\n\t\t\thold->loss", "if (false)\n\t\t\thold->loss" ] ],
		test => [ '025_commit_guard', 'what was rolled back to a savepoint, or given back in time, does not count' ]
	},
	{
		name => 'loss_forgotten_in_savepoint',
		what => 'nor on one that was lost before that, if it has taken it again since, in a subtransaction',
		edits => [ [ 'lock/transaction/xact.c', "\t\tif (other->loss == ZK_NOT_LOST)\n\t\t\tother->loss = hold->loss;\n", "\t\tother->loss = hold->loss;\n" ] ],
		test => [ '025_commit_guard', 'what was rolled back to a savepoint, or given back in time, does not count' ]
	},
	{
		name => 'loss_forgotten_by_reader',
		what => 'nor on one that relied on the node of a writer, and was given back before that one',
		edits => [ [ 'lock/transaction/release.c', "\tif (ending->node != NULL && twin != NULL && twin->grant.node == NULL)\n\t\ttell_holds(ending, twin);\n", "\t(void) twin;\n" ] ],
		test => [ '025_commit_guard', 'what was rolled back to a savepoint, or given back in time, does not count' ]
	},
	{
		name => 'ticket_of_another_session',
		what => 'COMMIT does not wait for its releases if there were others in an earlier session',
		edits => [ [ 'lock/transaction/xact.c', ' || ticket < ', ' || ticket > ' ] ],
		test => [ '023_end_of_transaction', 'COMMIT waits for what it releases, whatever was released in an earlier session' ]
	},
	{
		name => 'shown_without_lease',
		what => 'zk_server_locks shows as held what a stopped backend had in a session that is over',
		edits => [ [ 'backend/slots.c', 'info->session_id == 0 || zks_now() > zks_lease_ends(info);', 'info->session_id == 0;' ] ],
		test => [ '089_server_locks', 'states' ]
	},

	# claims
	{
		name => 'claim_let_go',
		what => "a claim's lock is given up before it is known what becomes of the claim",
		edits => [ [ 'zk/node.c', 'if (n->mark == NULL || zkn_mark_over(n->mark))', 'if (true)' ] ],
		test => [ '097_claims_lost', 'ZooKeeper is away for longer than a session lives' ]
	},
	{
		name => 'claim_unanswered',
		what => 'a mark that was not answered counts as refused',
		edits => [ [ 'zk/mark.c', 'zks_is_doubtful(rc) && !at_fault ? ZKN_MARK_UNSURE : ZKN_MARK_REFUSED', 'ZKN_MARK_REFUSED' ] ],
		test => [ '069_late_create', 'the mark of a claim' ]
	},
	{
		name => 'claim_comes_late',
		what => 'a mark that was not answered, and is not there, is not prevented from coming',
		edits => [ [ 'zk/mark.c', '(r->answer.stat.version == m->base && was_read(r, m->before))', 'false' ] ],
		test => [ '069_late_create', 'the mark of a claim' ]
	},
	{
		name => 'claim_of_any_text',
		what => 'one that has the version before it is taken for the one before it, whatever it says',
		edits => [ [ 'zk/mark.c', '(r->answer.stat.version == m->base && was_read(r, m->before))', 'r->answer.stat.version == m->base' ] ],
		test => [ '094_claims', 'another mark of the same version' ]
	},
	{
		name => 'claim_over_any_version',
		what => 'a mark is written whether or not it has changed since it was read',
		edits => [ [ 'zk/mark.c', 'op->version = m->base;', 'op->version = -1;' ] ],
		test => [ '094_claims', 'something else happens to the mark or to the node' ]
	},
	{
		name => 'claim_undone_to_nothing',
		what => 'a claim that is undone leaves no claim, instead of the one before',
		edits => [ [ 'zk/mark.c', 'm->decision == DONE ? m->done : m->before', 'm->decision == DONE ? m->done : ""' ] ],
		test => [ '094_claims', 'the node stays, and is given back before the mark is settled' ]
	},
	{
		name => 'claim_over_pending',
		what => 'a claim that is pending is none',
		edits => [ [ 'lock/transaction/claim.c', 'if (talk.seen.data_len > 0 && period <= talk.claim.period)', 'if (talk.seen.data_len > 0 && talk.claim.done && period <= talk.claim.period)' ] ],
		test => [ '094_claims', 'a later claim was there, and is undone' ]
	},
	{
		name => 'claim_settled_by_another',
		what => 'a mark that has changed since it was read counts as settled, though its own write may be what has come',
		edits => [ [ 'zk/mark.c', 'm->was_read ? ZKN_MARK_UNSURE : ZKN_MARK_SETTLED', 'ZKN_MARK_SETTLED' ] ],
		test => [ '069_late_create', 'the mark of a claim, behind a look at it' ]
	},
	{
		name => 'claim_unreadable',
		what => 'a mark that cannot be read any longer counts as settled, and its lock is given back',
		edits => [ [ 'zk/mark.c', "if (!zks_is_open(r->answer.rc))\n\t\t\trefused(m, r->answer.rc);\n\t\treturn;", "if (zks_is_open(r->answer.rc))\n\t\t\treturn;" ] ],
		test => [ '094_claims', 'a mark that cannot be read any longer' ]
	},
	{
		name => 'claim_without_lock',
		what => "a mark is written whether or not the lock's node is there",
		edits => [ [ 'zk/create.c', 'ops[2 * i].path = nodes[i]->path;', 'ops[2 * i].path = "/";' ] ],
		test => [ '094_claims', 'something else happens to the mark or to the node' ]
	});

sub named
{
	my ($name) = @_;
	my ($mutant) = grep { $_->{name} eq $name } @MUTANTS;
	return $mutant // die "no such mutant: $name (there are: " . join(' ', map { $_->{name} } @MUTANTS) . ")\n";
}

# The options of Torture->new, without other clients in the queues, who only take time
sub options { my ($scene) = @_; return (peers => 'no', %{ $SCENE{$scene}{options} }); }

# The files of this tree that the mutant changes: file => its new text
sub _changed
{
	my ($mutant, $tree) = @_;
	my %text;
	foreach my $edit (@{ $mutant->{edits} })
	{
		my ($file, $old, $new) = @$edit;
		$text{$file} //= _read("$tree/src/$file");
		my $times = () = $text{$file} =~ /\Q$old\E/g;
		die "mutant $mutant->{name}: src/$file has this $times times, and not once: $old\n" if $times != 1;
		$text{$file} =~ s/\Q$old\E/$new/;
	}
	return %text;
}

sub _read
{
	my ($name) = @_;
	open my $file, '<', $name or die "$name: $!\n";
	local $/;
	return scalar <$file>;
}

sub mutate
{
	my ($mutant, $tree) = @_;
	my %text = _changed($mutant, $tree);
	foreach my $name (sort keys %text)
	{
		# not in the same file, which may be linked to another tree's
		unlink "$tree/src/$name";
		open my $file, '>', "$tree/src/$name" or die "$name: $!\n";
		print $file $text{$name};
		close $file or die "$name: $!\n";
	}
	return;
}

# What is wrong with the table, for these sources and these kinds of violations
sub complaints
{
	my ($tree, @kinds) = @_;
	my (%seen, @wrong);
	my %known = map { $_ => 1 } @kinds;
	foreach my $mutant (@MUTANTS)
	{
		my $name = $mutant->{name};
		push @wrong, "$name is there twice" if $seen{$name}++;
		push @wrong, $@ =~ s/\n\z//r unless eval { _changed($mutant, $tree); 1 };
		if ($mutant->{test})
		{
			my ($test, @subtests) = @{ $mutant->{test} };
			my $text = eval { _read("$tree/t/$test.pl") } // '';
			push @wrong, map { "$name: t/$test.pl has no subtest '$_'" } grep { $text !~ /\b(?:subtest|edge) '\Q$_\E'/ } @subtests;
			next;
		}
		push @wrong, "$name: there is no scene $mutant->{scene}" unless $SCENE{ $mutant->{scene} };
		push @wrong, map { "$name: there is no violation $_" } grep { !$known{$_} } @{ $mutant->{convicted} };
		push @wrong, "$name: is not to be convicted of anything" unless @{ $mutant->{convicted} };
	}
	return @wrong;
}

1;
