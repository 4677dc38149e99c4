from steppe.cli.app import main

main()
