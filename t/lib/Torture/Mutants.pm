
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

  [ name => what is broken,
    [ file in src/, text that is there exactly once, what takes its place ], ...
    scene => kinds of violations ]

The name is in words joined by underscores; the scene, a key of %SCENE, is the run that
shows it; of the violations (see Torture::Checker) one must be found.  Or, in the place of
the last line, what else shows it, since the moment never comes by chance: a file in t/,
without .pl, and those of its subtests that must fail:

    file => subtests ]

Others get { name, what, edits } with { scene, convicted } or { test => [ file, subtests ] }.

=cut

package Torture::Mutants;

use strict;
use warnings;

# What the runs need: faults, their moments, how crowded the queues are
my %CROWD = (seconds => 8, faults => 'none', kinds => 'exclusive', workers => 8, objects => 2, rest => 0.05);
our %SCENE = (

	# long queues and no fault, with readers, or semaphores
	crowd => {%CROWD},
	readers => { %CROWD, kinds => 'exclusive,shared' },
	places => { %CROWD, kinds => 'semaphore' },

	# commits take 50 ms, and nothing but the lock keeps the writers apart
	slow_commit => { %CROWD, seconds => 16, contents => ['counter'], fence => 0, commit_delay => 50_000 },

	# holders are stopped for longer than their sessions live
	asleep => {
		seconds => 15, faults => 'backend_stop', moment => 'critical', pause => [ 0.3, 0.8 ], kinds => 'exclusive', contents => ['counter'], objects => 4,
		fence => 0
	},

	# as many handovers as possible
	handovers => { seconds => 20, faults => 'none', kinds => 'exclusive', workers => 10, objects => 3, style => 'curator', think => [ 0, 0.01 ], rest => 0.01, hang => 10 },

	# somebody deletes nodes of sessions that have several
	breaks => {
		seconds => 20, faults => 'lock_break', pause => [ 0.2, 0.4 ], kinds => 'several', workers => 6, objects => 12, style => 'curator', fence => 0,
		think => [ 2, 3 ], rest => 0.05
	},

	# connections break while many wait
	drops => { %CROWD, seconds => 10, faults => 'drop', pause => [ 0.5, 1 ], workers => 10, hang => 10 });

# Of these the violation comes up so often that a run without it is out of the question;
# the others are tested only where somebody asks for them.
our %SURE = map { $_ => 1 } qw(crowd readers places slow_commit asleep);

our @MUTANTS = map { _mutant(@$_) } (
	[   grants_always => 'a lock that always grants',
		[ 'lock/queue/acquire.c', 'return p->view.need == 0 ? GRANTED : WAIT_ON;', 'return GRANTED;' ],
		crowd => 'two holders', 'turn' ],
	[   out_of_turn => 'who watches the two before it takes the lock when either of them goes',
		[ 'lock/queue/blockers.c', 'if (view->next && watch.epoch == epoch && is_our_turn(c, p))', 'if (watch.epoch == epoch && is_our_turn(c, p))' ],
		crowd => 'turn' ],
	[   writer_beside_readers => 'a shared lock that lets a writer in',
		[ 'zk/lock_protocol.c', 'if (queue[i].mode == ZKP_SHARED && mode == ZKP_SHARED)', 'if (queue[i].mode == ZKP_SHARED)' ],
		readers => 'two holders', 'turn' ],
	[   place_too_many => 'a semaphore with one place more than its holders were told',
		[ 'zk/lock_protocol.c', "\tif (before < permits)\n\t{", "\tif (before <= permits)\n\t{" ],
		places => 'two holders', 'turn' ],
	[   release_before_commit => 'the end of a transaction releases before it is visible to others',
		[ 'lock/transaction/xact.c', "\t\tbefore_commit();\n", "\t{\n\t\tbefore_commit();\n\t\tend_transaction(true);\n\t}\n" ],
		slow_commit => 'lost update' ],
	[   guard_always_passes => 'a commit guard that lets every transaction pass',
		[ 'lock/transaction/commit_guard.c', "if (zklock_commit_guard == ZKLOCK_GUARD_OFF)\n\t\treturn NULL;", "if (true)\n\t\treturn NULL;" ],
		asleep => 'late commit' ],
	[   release_without_standby => 'a COMMIT that waits for its standby as the postmaster dies gives its locks back',
		[ 'lock/transaction/xact.c', 'commit && ProcDiePending && !PostmasterIsAliveInternal()', 'false' ],
		'034_stop' => 'the postmaster is killed while COMMIT waits for its synchronous standby' ],
	[   wakeup_dropped => 'one event of a hundred does not reach who waits for it',
		[   'zk/watch.c', "\t\tif (type == ZOO_DELETED_EVENT)\n",
			"\t\tif (type == ZOO_DELETED_EVENT && zks_random(100) == 0)\n\t\t\treturn;\n\t\tif (type == ZOO_DELETED_EVENT)\n" ],
		handovers => 'no end' ],
	[   no_list_after_reconnection => 'who has reconnected believes no watch of the old connection, and sets no new one',
		[   'lock/queue/blockers.c', "if (info->epoch != p->list_epoch)\n\t\treturn LIST_AGAIN;",
			"if (info->epoch != p->list_epoch)\n\t\treturn WAIT_ON;" ],
		drops => 'no end' ],
	[   turn_without_proof => 'an event grants the lock, whatever has become of the connection and our own node since',
		[ 'lock/queue/blockers.c', "\tif (info->state != ZKS_CONNECTED)\n\t\treturn WAIT_ON;\n", '' ],
		[   'lock/queue/blockers.c', "p->list_epoch == info.epoch &&\n\t\tzks_is_fresh(&info);",
			'p->list_epoch == info.epoch;' ],
		[ 'lock/queue/place.c', 'proof = zkb_prove(nodes, n, ZKS_GRANT, 0, c->wait, zkb_wait_answer_due(c->wait));', 'proof = ZKB_PROVEN;' ],
		'014_ensemble' => 'a grant that no quorum has confirmed' ],
	[   sync_for_proof => 'that a sync was answered, and then a read that shows our own node, is taken for the word of a quorum',
		[   'zk/multi.c', "\tr->op = ZOO_MULTI_OP;\n",
			"\tif (ops[0].type == ZOO_CHECK_OP)\n\t{\n"
			  . "\t\tr->writes = true;\n\t\tr->sync_path = ops[0].path;\n\t\tzkr_read_locked(r, ZOO_EXISTS_OP, ops[0].path);\n\t\treturn;\n\t}\n"
			  . "\tr->op = ZOO_MULTI_OP;\n" ],
		'014_ensemble' => 'a leader without followers, and an event of before' ],
	[   no_own_watch => 'no watch on our own node, and nobody misses it',
		[ 'zk/proof.c', "\tif (zkn_is_renaming(n))\n\t\treturn;\n\tif (old != NULL", "\tif (true)\n\t\treturn;\n\tif (old != NULL" ],
		[   'zk/proof.c', "return n->watch != NULL && n->watch->info.state == ZKR_WATCH_ARMED &&\n\t\tn->watch->info.epoch == n->session->info.epoch;",
			'return true;' ],
		[   'lock/queue/blockers.c', "node.state == ZKN_PRESENT && node.watch == ZKR_WATCH_ARMED &&\n\t\tnode.watch_epoch == info.epoch && ",
			'node.state == ZKN_PRESENT && ' ],
		[ 'lock/queue/blockers.c', 'if (node.watch == ZKR_WATCH_FAILED || node.watch == ZKR_WATCH_CHANGED)', 'if (false)' ],
		breaks => 'late commit', 'stale grant' ],
	[   list_without_proof => 'a list or an event grants the lock, though no quorum has confirmed our own node since',
		[ 'lock/queue/place.c', 'proof = zkb_prove(nodes, n, ZKS_GRANT, 0, c->wait, zkb_wait_answer_due(c->wait));', 'proof = ZKB_PROVEN;' ],
		'014_ensemble' => 'a leader without followers, and an event of before' ],
	[   reconnection_for_proof => "that a session was taken up again is taken for the word of a quorum",
		[   'zk/connection.c', "\t\tzkr_heard_locked(s, s->attempts.at);\n\t\tzks_lease_renewed(&s->info);\n",
			"\t\tzkr_heard_locked(s, s->attempts.at);\n\t\tzks_lease_renewed(&s->info);\n\t\ts->info.quorum_at = s->attempts.at;\n\t\ts->info.gap_at = 0;\n" ],
		'014_ensemble' => 'a leader without followers, and an event of before' ],
	[   watches_mislaid => 'a watch is kept where no event looks for it',
		[ 'zk/watch.c', 'LIST_INSERT_HEAD(chain_of(s, path), w, in_chain);', 'LIST_INSERT_HEAD(&s->watches.chains[0], w, in_chain);' ],
		'025_commit_guard' => 'several locks, one of them deleted by hand' ],

	# a grant without a list
	[   next_of_any_number => 'our new node is taken for the next one, whatever its number',
		[ 'zk/lock_protocol.c', ' && b.seq == a.seq + 1 &&', ' &&' ],
		'104_no_list' => 'whoever comes in between' ],
	[   next_in_any_directory => 'nor does it matter how many transactions were in between',
		[ 'zk/lock_protocol.c', "last_czxid >> 32 == czxid >> 32 &&\n\t\tczxid - last_czxid < (int64_t) a.seq + 3;", 'last_czxid >> 32 == czxid >> 32;' ],
		'104_no_list' => 'a directory that is made again', 'a directory that is reaped' ],
	[   next_by_one_transaction_more => 'there may be one transaction more between them than a directory needs that is made again',
		[ 'zk/lock_protocol.c', '(int64_t) a.seq + 3;', '(int64_t) a.seq + 4;' ],
		'104_no_list' => 'a directory that is made again' ],
	[   next_though_not_alone => 'nor whether others stood behind the last one',
		[ 'lock/queue/acquire.c', 'p->alone = p->view.self_seen && listed == 1;', 'p->alone = true;' ],
		'104_no_list' => 'one with a number from the future' ],
	[   next_near_wrap => 'numbers that are about to wrap count as others do',
		[ 'zk/lock_protocol.c', 'a.seq >= 0 && !near_wrap(b.seq) &&', 'a.seq >= 0 &&' ],
		'012_stress' => 'numbers that are about to wrap are not relied on' ],
	[   next_on_any_connection => 'it may be on another connection than the last one',
		[ 'zk/turn.c', 't->given_back && t->epoch == s->info.epoch &&', 't->given_back &&' ],
		[ 'zk/turn.c', 't->epoch == s->info.epoch && t->in_a_row >= t->needed', 't->in_a_row >= t->needed' ],
		'104_no_list' => 'what ends it' ],
	[   next_though_lost => 'the last one need not have been ours until we gave it back',
		[ 'zk/turn.c', 'deleted && t->epoch', 't->epoch' ],
		'104_no_list' => 'what ends it' ],
	[   next_after_reader => 'nor need it have been exclusive until then',
		[ 'zk/turn.c', "\tif (t != NULL)\n\t\tforget(s, t);\n}", "\t(void) t;\n}" ],
		'104_no_list' => 'what ends it' ],

	# procedures that wait without a snapshot
	[   any_snapshot_given_up => 'a procedure gives up the active snapshot, whosever it is',
		[ 'backend/internals.h', 'ActiveSnapshotSet() && GetActiveSnapshot() == ActivePortal->portalSnapshot', 'ActiveSnapshotSet()' ],
		'108_procedures' => 'what the backend itself has while it waits' ],
	[   portal_keeps_pointer => 'the portal still points to the snapshot that is gone; assertions do not see it, since the next one gets its memory',
		[ 'backend/internals.h', "\tActivePortal->portalSnapshot = NULL;", '' ],
		'108_procedures' => 'what the backend itself has while it waits' ],
	[   no_portal => 'a trigger that runs at COMMIT, or in a worker of logical replication, is taken for a procedure in a portal',
		[ 'backend/internals.h', "ActivePortal != NULL && ActivePortal->portalSnapshot != NULL &&\n\t\t", '' ],
		'108_procedures' => 'with a snapshot' ],
	[   path_read_late => 'a procedure reads its arguments when the snapshot has gone that they were found with',
		[ 'zklock.c', "\tchar\t   *path = zkb_path_argument(fcinfo);\n\tint64\t\ttimeout = timeout_argument(fcinfo, 1);", "\tchar\t   *path;\n\tint64\t\ttimeout = timeout_argument(fcinfo, 1);" ],
		[ 'zklock.c', "left = leave_snapshot(fcinfo);\n", "left = leave_snapshot(fcinfo);\n\tpath = zkb_path_argument(fcinfo);\n" ],
		'108_procedures' => 'without a snapshot' ],
	[   no_snapshot_afterwards => 'a procedure that has waited leaves its caller without a snapshot',
		[ 'zklock.c', "\tif (left)\n\t\tEnsurePortalSnapshotExists();\n", "\t(void) left;\n" ],
		'108_procedures' => 'what the backend itself has while it waits' ],
	[   catalog_snapshot_stays => 'who has looked into a catalog sleeps with the snapshot of that',
		[ 'backend/wait.c', "\tInvalidateCatalogSnapshot();\n", '' ],
		'108_procedures' => 'what the backend itself has while it waits' ],
	[   no_snapshot_for_commit => 'who has no snapshot is taken for one that is about to commit, and not canceled when a lock is lost',
		[ 'lock/transaction/stop.c', "\t\tdefault:\n\t\t\treturn false;\n", "\t\tdefault:\n\t\t\treturn true;\n" ],
		'034_stop' => 'statements' ],

	# how deadlocks are found, and ended
	[   break_unchecked => 'who has found a cycle gives up its place if the first node of it is there, whatever has become of the others',
		[ 'lock/deadlock/deadlock.c', "cycle->checks, cycle->nchecks);", "cycle->checks, 1);" ],
		'018_deadlocks' => 'a writer gives up between two readers, one of whom breaks the cycle' ],
	[   break_beside_downgrade => 'a cycle is broken if the nodes of those that hold are there, whether or not they have changed',
		[ 'lock/deadlock/chase.c', 'contender->granted ? contender->stat.version : -1);', '-1);' ],
		'018_deadlocks' => 'who waits for a row gives up, and downgrades' ],
	[   break_beside_new_record => 'the same with the records that tell of waits for locks of PostgreSQL',
		[   'lock/deadlock/deadlock.c', "\t/* whatever happens now, it is better to know what became of it */\n",
			"\tfor (int i = 0; i < cycle->nrecords; i++)\n\t\tcycle->checks[i].version = -1;\n" ],
		'018_deadlocks' => 'who waits for a row gives up, and runs on' ],
	[   others_believed_at_once => 'what a record says of waits on another server counts when it is read first',
		[ 'lock/deadlock/deadlock.c', "\tif (cycle->nrecords > 0)\n\t{", "\tif (false)\n\t{" ],
		'018_deadlocks' => 'what another server says counts when it has said it three times' ],
	[   one_local_look => 'who waited for us on our own server when the look began is not looked at again before the cycle is broken',
		[ 'lock/deadlock/chase.c', "\t(void) zkl_find_waits(&c->records[OWN_RECORD].says);\n", '' ],
		'018_deadlocks' => 'who waits for our row gives up while we look' ],
	[   hidden_by_another => 'a cycle that nobody says again hides another one, which is never found',
		[ 'lock/deadlock/chase.c', "\t\tif (is_later(c, &local))\n\t\t\tcontinue;\n", "\t\t(void) is_later;\n" ],
		'018_deadlocks' => 'a cycle that rests on what nobody says again hides no other' ],
	[   any_place_counts => 'who waits for a semaphore is stuck if one of its holders is',
		[ 'lock/deadlock/wait_graph.c', 'return before->n - 1 >= c->permits;', 'return before->n > 1;' ],
		'018_deadlocks' => 'semaphores' ],
	[   own_node_in_the_way => "a session's own shared node is taken for one that blocks its upgrade",
		[ 'lock/deadlock/wait_graph.c', 'return a->owner == b->owner && a->owner != 0;', 'return false;' ],
		'018_deadlocks' => 'an upgrade that waits for a reader who runs' ],
	[   any_author => "a record is its author's whichever session of ZooKeeper has written it",
		[ 'lock/deadlock/chase.c', '!record->valid || record->stat.owner != party->owner || ', '!record->valid || ' ],
		[ 'lock/deadlock/chase.c', 'if (owner != c->parties[at].owner)', 'if (false)' ],
		'018_deadlocks' => 'junk on the board' ],

	# what counts as writing, and what is known of a statement
	[   copy_is_no_writing => 'COPY FROM into a foreign table leaves no trace, so the session may have lost its locks',
		[ 'lock/transaction/statement_hooks.c', "\t\t\tif (!((const CopyStmt *) statement)->is_from)\n\t\t\t\tbreak;\n\t\t\tpg_fallthrough;\n", "\t\t\tbreak;\n" ],
		'025_commit_guard' => 'what counts as writing' ],
	[   partition_is_no_writing => 'nor does a row that is routed to a partition on another server',
		[ 'lock/transaction/statement_hooks.c', ' ||
		 any_is_foreign(queryDesc->estate->es_tuple_routing_result_relations)', '' ],
		'025_commit_guard' => 'what counts as writing' ],
	[   writing_remembered => 'a transaction that has written elsewhere makes all later ones rely on the locks of the session',
		[ 'lock/transaction/xact.c', 'memset(&zkl_deeds, 0, sizeof(zkl_deeds));', 'zkl_deeds.judged = zkl_deeds.dropped_something = false;' ],
		'025_commit_guard' => 'what counts as writing' ],
	[   writing_forgotten => 'what was written elsewhere is forgotten when a savepoint is rolled back to',
		[   'lock/transaction/xact.c', "\t/* what failed may have put that off until it is done */\n",
			"\tif (event == SUBXACT_EVENT_ABORT_SUB)\n\t\tmemset(&zkl_deeds, 0, sizeof(zkl_deeds));\n" ],
		'025_commit_guard' => 'what counts as writing' ],
	[   begun_without_lock => 'what cannot be undone is judged at COMMIT like all else',
		[ 'lock/transaction/statement_hooks.c', 'if (has_locks && cannot_be_undone(statement))', 'if (false && cannot_be_undone(statement))' ],
		'025_commit_guard' => 'what cannot be undone is not begun' ],

	# calls of PostgreSQL's own advisory lock functions
	[   operators_pass => "an operator that is one of PostgreSQL's advisory lock functions is called where nobody sees it",
		[ 'redirect.c', 'each_row(OperatorRelationId, note_operator);', 'if (false) each_row(OperatorRelationId, note_operator);' ],
		'106_redirect' => 'unseen' ],

	# which of the nodes at a path is ours, and what becomes of it
	[   version_in_doubt => 'a single node may have the version of one whose delete was not answered, and be hit by that',
		[ 'zk/single.c', 'if (zks_now() < other->stale_until && strcmp(other->dir, n->dir) == 0)', 'if (false)' ],
		'095_single' => 'many deletes that are stuck on their way' ],
	[   late_create_stays => 'a create that was not answered is looked for once, and not as long as it may still be carried out',
		[   'zk/node.c', "\t\t\telse if (n->state == ZKN_ABSENT && usable && n->pending == 0 && now >= n->look_at)\n\t\t\t\tlook(n);\n\t\t\tbreak;",
			"\t\t\tbreak;" ],
		'069_late_create' => 'the node of a lock, or of several' ],
	[   several_in_doubt => 'a create of several nodes that was not answered counts as refused',
		[ 'zk/create.c', 'if (r->answer.rc == ZOK || zks_is_doubtful(r->answer.rc) || i == failed)', 'if (r->answer.rc == ZOK || i == failed)' ],
		'069_late_create' => 'the node of a lock, or of several' ],
	[   refused_is_gone => 'a node that ZooKeeper refuses to delete counts as deleted, and stays',
		[ 'zk/node.c', 'set_refused(n, rc == ZBADVERSION ? ZNOAUTH : rc);', 'deleted(n, ZOK);' ],
		'024_refused' => 'rights that are withdrawn' ],

	# what was lost, or may have been, when it was given back
	[   release_in_doubt => 'a release whose answer is lost counts as that of a lock that was held',
		[ 'lock/transaction/release.c', 'if (ending->ended == WAITING || ending->ended == UNCERTAIN)', 'if (false)' ],
		'025_commit_guard' => 'the answer to a release is lost' ],
	[   loss_forgotten => 'a transaction does not rely on a lock that was lost before it gave it back',
		[ 'lock/transaction/release.c', "if (ending->ended == LOST_BEFORE)\n\t\t\thold->loss", "if (false)\n\t\t\thold->loss" ],
		'025_commit_guard' => 'what was rolled back to a savepoint, or given back in time, does not count' ],
	[   loss_forgotten_in_savepoint => 'nor on one that was lost before that, if it has taken it again since, in a subtransaction',
		[ 'lock/transaction/xact.c', "\t\tif (other->loss == ZK_NOT_LOST)\n\t\t\tother->loss = hold->loss;\n", "\t\tother->loss = hold->loss;\n" ],
		'025_commit_guard' => 'what was rolled back to a savepoint, or given back in time, does not count' ],
	[   loss_forgotten_by_reader => 'nor on one that relied on the node of a writer, and was given back before that one',
		[ 'lock/transaction/release.c', "\tif (ending->node != NULL && twin != NULL && twin->grant.node == NULL)\n\t\ttell_holds(ending, twin);\n", "\t(void) twin;\n" ],
		'025_commit_guard' => 'what was rolled back to a savepoint, or given back in time, does not count' ],
	[   ticket_of_another_session => 'COMMIT does not wait for its releases if there were others in an earlier session',
		[ 'lock/transaction/xact.c', ' || ticket < ', ' || ticket > ' ],
		'023_end_of_transaction' => 'COMMIT waits for what it releases, whatever was released in an earlier session' ],
	[   shown_without_lease => 'zk_server_locks shows as held what a stopped backend had in a session that is over',
		[ 'backend/slots.c', 'info->session_id == 0 || zks_now() > zks_lease_ends(info);', 'info->session_id == 0;' ],
		'089_server_locks' => 'states' ],

	# claims
	[   claim_let_go => "a claim's lock is given up before it is known what becomes of the claim",
		[ 'zk/node.c', 'if (n->mark == NULL || zkn_mark_over(n->mark))', 'if (true)' ],
		'097_claims_lost' => 'ZooKeeper is away for longer than a session lives' ],
	[   claim_unanswered => 'a mark that was not answered counts as refused',
		[ 'zk/mark.c', 'zks_is_doubtful(rc) && !at_fault ? ZKN_MARK_UNSURE : ZKN_MARK_REFUSED', 'ZKN_MARK_REFUSED' ],
		'069_late_create' => 'the mark of a claim' ],
	[   claim_comes_late => 'a mark that was not answered, and is not there, is not prevented from coming',
		[ 'zk/mark.c', '(r->answer.stat.version == m->base && was_read(r, m->before))', 'false' ],
		'069_late_create' => 'the mark of a claim' ],
	[   claim_of_any_text => 'one that has the version before it is taken for the one before it, whatever it says',
		[ 'zk/mark.c', '(r->answer.stat.version == m->base && was_read(r, m->before))', 'r->answer.stat.version == m->base' ],
		'094_claims' => 'another mark of the same version' ],
	[   claim_over_any_version => 'a mark is written whether or not it has changed since it was read',
		[ 'zk/mark.c', 'op->version = m->base;', 'op->version = -1;' ],
		'094_claims' => 'something else happens to the mark or to the node' ],
	[   claim_undone_to_nothing => 'a claim that is undone leaves no claim, instead of the one before',
		[ 'zk/mark.c', 'm->decision == DONE ? m->done : m->before', 'm->decision == DONE ? m->done : ""' ],
		'094_claims' => 'the node stays, and is given back before the mark is settled' ],
	[   claim_over_pending => 'a claim that is pending is none',
		[ 'lock/transaction/claim.c', 'if (talk.seen.data_len > 0 && period <= talk.claim.period)', 'if (talk.seen.data_len > 0 && talk.claim.done && period <= talk.claim.period)' ],
		'094_claims' => 'a later claim was there, and is undone' ],
	[   claim_settled_by_another => 'a mark that has changed since it was read counts as settled, though its own write may be what has come',
		[ 'zk/mark.c', 'm->was_read ? ZKN_MARK_UNSURE : ZKN_MARK_SETTLED', 'ZKN_MARK_SETTLED' ],
		'069_late_create' => 'the mark of a claim, behind a look at it' ],
	[   claim_unreadable => 'a mark that cannot be read any longer counts as settled, and its lock is given back',
		[ 'zk/mark.c', "if (!zks_is_open(r->answer.rc))\n\t\t\trefused(m, r->answer.rc);\n\t\treturn;", "if (zks_is_open(r->answer.rc))\n\t\t\treturn;" ],
		'094_claims' => 'a mark that cannot be read any longer' ],
	[   claim_without_lock => "a mark is written whether or not the lock's node is there",
		[ 'zk/create.c', 'ops[2 * i].path = nodes[i]->path;', 'ops[2 * i].path = "/";' ],
		'094_claims' => 'something else happens to the mark or to the node' ]);

sub _mutant
{
	my ($name, $what, @edits) = @_;
	my @by;
	unshift @by, pop @edits until ref $edits[-1];
	return { name => $name, what => $what, edits => \@edits, $SCENE{ $by[0] } ? (scene => shift @by, convicted => \@by) : (test => \@by) };
}

sub named
{
	my ($name) = @_;
	my ($mutant) = grep { $_->{name} eq $name } @MUTANTS;
	return $mutant // die "no such mutant: $name (there are: " . join(' ', map { $_->{name} } @MUTANTS) . ")\n";
}

# The options of Torture->new, without other clients in the queues, who only take time
sub options { my ($scene) = @_; return (peers => 'no', %{ $SCENE{$scene} }); }

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
		my ($test, @subtests) = @{ $mutant->{test} // [] };
		my $text = defined $test ? eval { _read("$tree/t/$test.pl") } // '' : '';
		push @wrong, map { "$name: t/$test.pl has no subtest '$_'" } grep { $text !~ /\b(?:subtest|edge) '\Q$_\E'/ } @subtests;
		push @wrong, map { "$name: there is no violation $_" } grep { !$known{$_} } @{ $mutant->{convicted} // [] };
		push @wrong, "$name: is not to be convicted of anything" unless @subtests || @{ $mutant->{convicted} // [] };
	}
	return @wrong;
}

1;
