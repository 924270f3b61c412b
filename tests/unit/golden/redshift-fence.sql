SELECT c.relname, c.oid FROM pg_namespace n LEFT JOIN pg_class c ON c.relnamespace = n.oid AND c.relname IN ('orders', 'strandline_ledger') AND c.relkind IN ('r', 'v') WHERE n.nspname = 'shop';

SELECT pipeline, table_name, stage, owner, made, epoch, number, fence, batch, rows_read, rows_inserted, rows_updated, rows_deleted, last_moved FROM "shop"."strandline_ledger" WHERE target = 'orders';

BEGIN;

LOCK TABLE "shop"."strandline_ledger";

UPDATE "shop"."strandline_ledger" SET fence = 2, changed_at = getdate() WHERE target = 'orders' AND pipeline = 'shop' AND table_name = 'orders' AND stage = 'load' AND fence < 2;

COMMIT;

SELECT c.relname, c.oid FROM pg_namespace n LEFT JOIN pg_class c ON c.relnamespace = n.oid AND c.relname IN ('orders', 'strandline_ledger') AND c.relkind IN ('r', 'v') WHERE n.nspname = 'shop';

SELECT pipeline, table_name, stage, owner, made, epoch, number, fence, batch, rows_read, rows_inserted, rows_updated, rows_deleted, last_moved FROM "shop"."strandline_ledger" WHERE target = 'orders';

